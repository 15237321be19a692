"""`start`: its arguments are the options, once, and a typo in one of them is told in our own words."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import get_type_hints

import pyarrow as pa
import pytest

import penstock as pen
from penstock.engine.options import BESIDE_OPTIONS, Config, Options
from penstock.errors import ConfigError
from penstock.testing import stream_of

STARTS: list[Callable[..., object]] = [pen.start, pen.Output.start]


def output() -> pen.Output:
    return stream_of(pa.schema([("k", pa.int64())])).write(pen.Discard())


@pytest.mark.parametrize("start", STARTS)
def test_help_shows_every_option_with_its_default(start: Callable[..., object]) -> None:
    shown = inspect.signature(start).parameters
    wanted = {option.name: option.default for option in fields(Config) if option.default is not MISSING}
    assert {name: shown[name].default for name in wanted} == wanted
    assert shown.keys() - wanted.keys() - {"self", "outputs"} == {"checkpoint", *BESIDE_OPTIONS}


@pytest.mark.parametrize("start", STARTS)
def test_help_shows_the_types_that_people_may_write(start: Callable[..., object]) -> None:
    shown = inspect.signature(start).parameters
    assert shown["epoch"].annotation == "Duration | None"
    assert shown["max_in_flight"].annotation == "Size"


def test_the_types_of_options_are_declared_once_and_for_all_of_them() -> None:
    assert list(get_type_hints(Options)) == [option.name for option in fields(Config)][1:]


@pytest.mark.parametrize("start", [output().start, lambda **options: pen.start(output(), **options)])
def test_an_option_that_does_not_exist_is_refused_with_the_closest_one(start: Callable[..., object]) -> None:
    with pytest.raises(ConfigError, match="no option 'epoch_retry'") as raised:
        start(checkpoint="folder", epoch_retry=3)
    assert "epoch_retries" in raised.value.cause
