"""Options: what people may write, and what they are told when it cannot be."""

from __future__ import annotations

import dataclasses
import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.engine.options import Config
from penstock.errors import ConfigError
from penstock.units import parse_bytes, parse_duration

HERE = "checkpoints/totals"


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("1 s", 1.0),
        ("500 ms", 0.5),
        ("2 min", 120.0),
        ("1 h", 3600.0),
        ("1 d", 86400.0),
        ("1.5 s", 1.5),
        ("10s", 10.0),
        (" 10 seconds ", 10.0),
        ("1 minute", 60.0),
        ("0 s", 0.0),
        (1.5, 1.5),
        (3, 3.0),
        (timedelta(milliseconds=250), 0.25),
    ],
)
def test_a_duration_becomes_seconds(written: object, seconds: float) -> None:
    assert parse_duration(written) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "written", ["", "1", "s", "1 fortnight", "-1 s", "1 s 2 ms", -1, math.nan, math.inf, True, None, timedelta(-1)]
)
def test_what_is_no_duration_is_refused_with_the_forms_that_are(written: object) -> None:
    """E5."""
    with pytest.raises(ConfigError) as raised:
        parse_duration(written, "epoch")
    assert repr(written) in raised.value.seen
    assert '"500 ms"' in raised.value.next_step
    assert raised.value.fields == {"option": "epoch"}


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("64 MB", 64_000_000),
        ("1 GB", 1_000_000_000),
        ("2 TB", 2_000_000_000_000),
        ("1 KB", 1000),
        ("512 KiB", 524_288),
        ("16 MiB", 16_777_216),
        ("1 GiB", 1_073_741_824),
        ("1.5kB", 1500),
        ("7 B", 7),
        (4096, 4096),
        (0, 0),
    ],
)
def test_a_size_becomes_bytes(written: object, size: int) -> None:
    parsed = parse_bytes(written)
    assert (parsed, type(parsed)) == (size, int)


@pytest.mark.parametrize("written", ["", "64", "64 M", "MB", "-1 MB", "1e3 B", -1, 1.5, True, None])
def test_what_is_no_size_is_refused_with_the_forms_that_are(written: object) -> None:
    """E5."""
    with pytest.raises(ConfigError) as raised:
        parse_bytes(written, "max_in_flight")
    assert repr(written) in raised.value.seen
    assert '"512 KiB"' in raised.value.next_step
    assert raised.value.fields == {"option": "max_in_flight"}


def test_defaults_are_those_of_the_documentation() -> None:
    assert Config.of(HERE) == Config(
        checkpoint=HERE,
        name=None,
        parallelism=4,
        max_parallelism=128,
        epoch=1.0,
        epoch_retries=2,
        trigger=None,
        restore=None,
        retain=3,
        max_in_flight=10**9,
        max_in_flight_segments=2000,
        max_backlog=10.0,
        max_uncommitted=16,
        prefetch_bytes=16 * 2**20,
        segment_bytes=64 * 2**20,
    )


def test_every_default_is_a_value_that_people_may_write() -> None:
    # Kept as pairs, so that they can be hashed.
    written = dataclasses.asdict(Config.of(HERE)) | {"renamed": {}, "migrate": {}}
    assert Config.of(**written) == Config.of(HERE)


@pytest.mark.parametrize(
    ("option", "written", "value"),
    [
        ("checkpoint", Path("some/where"), "some/where"),
        ("epoch", "500 ms", 0.5),
        ("epoch", None, None),
        ("max_in_flight", "2 GB", 2 * 10**9),
        ("segment_bytes", "1 MiB", 2**20),
        ("trigger", "available_now", "available_now"),
        ("trigger", "10 s", 10.0),
        ("trigger", None, None),
        ("restore", 42, 42),
        ("restore", "42", 42),
        ("restore", "copies/savepoint", "copies/savepoint"),
        ("parallelism", {"totals": 8, "enrich": 2}, {"totals": 8, "enrich": 2}),
        ("epoch_retries", 0, 0),
    ],
)
def test_an_option_is_parsed(option: str, written: object, value: object) -> None:
    options: dict[str, Any] = {"checkpoint": HERE, option: written}
    assert getattr(Config.of(**options), option) == value


@pytest.mark.parametrize(
    ("option", "written"),
    [
        ("checkpoint", ""),
        ("checkpoint", 7),
        ("name", ""),
        ("name", " "),
        ("epoch", 0),
        ("epoch", "-1 s"),
        ("trigger", "continuous"),
        ("trigger", "0 s"),
        ("restore", -1),
        ("restore", ""),
        ("restore", True),
        ("retain", 0),
        ("retain", 2.5),
        ("parallelism", 0),
        ("parallelism", True),
        ("parallelism", "4"),
        ("max_parallelism", 0),
        ("max_parallelism", 2**15 + 1),
        ("epoch_retries", -1),
        ("max_in_flight", 0),
        ("max_in_flight_segments", 0),
        ("max_uncommitted", 0),
        ("prefetch_bytes", 0),
        ("segment_bytes", "0 B"),
    ],
)
def test_a_value_out_of_range_is_refused_by_the_options_name(option: str, written: object) -> None:
    """E5."""
    options: dict[str, Any] = {"checkpoint": HERE, option: written}
    with pytest.raises(ConfigError) as raised:
        Config.of(**options)
    assert raised.value.fields["option"] == option
    assert option in raised.value.seen
    assert repr(written) in raised.value.seen
    assert raised.value.next_step


def test_a_stage_with_a_bad_parallelism_is_named() -> None:
    with pytest.raises(ConfigError, match=r"parallelism\[totals\]=0"):
        Config.of(HERE, parallelism={"totals": 0})


@pytest.mark.parametrize("parallelism", [129, {"enrich": 2, "totals": 129}])
def test_more_subtasks_than_key_groups_are_refused(parallelism: object) -> None:
    with pytest.raises(ConfigError, match="is 129, max_parallelism is 128") as raised:
        Config.of(HERE, parallelism=parallelism)
    assert raised.value.fields["option"] == "parallelism"


def test_as_many_subtasks_as_key_groups_are_allowed() -> None:
    assert Config.of(HERE, parallelism=7, max_parallelism=7).subtasks({"any": "any"}) == {"any": 7}


def test_a_stage_that_the_mapping_does_not_name_gets_the_default_parallelism() -> None:
    config = Config.of(HERE, parallelism={"totals": 8})
    assert config.subtasks({"totals": "totals", "other": "other"}) == {"totals": 8, "other": 4}


def test_an_unknown_option_is_refused_with_the_closest_ones() -> None:
    """E5."""
    with pytest.raises(ConfigError, match="max_inflight") as raised:
        Config.of(HERE, max_inflight="1 GB")
    assert "max_in_flight" in raised.value.cause
    assert "epoch_retries" in raised.value.next_step


def test_an_unknown_option_like_no_other_is_refused_with_the_list() -> None:
    with pytest.raises(ConfigError) as raised:
        Config.of(HERE, zzz=1)
    assert "did you mean" not in raised.value.cause
    assert "max_in_flight" in raised.value.next_step


def test_a_typo_of_an_argument_beside_the_options_is_corrected_too() -> None:
    with pytest.raises(ConfigError) as raised:
        Config.of(HERE, dead_leters=None)
    assert raised.value.cause == "did you mean dead_letters?"


def test_a_config_cannot_be_changed() -> None:
    config = Config.of(HERE)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.retain = 9  # type: ignore[misc]
