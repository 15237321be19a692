"""The manifest fields that most checkpoints do not have, read as FORMAT.md says, and by this library.

The golden file was written by `tests.support.golden_optional`. It is never written again to make a test pass.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.engine.checkpoints import Checkpoints
from penstock.protocol import manifest as values
from penstock.protocol.codec import encode_manifest
from penstock.protocol.ids import CheckpointId
from penstock.store import LocalStore
from tests.support import golden_optional as golden
from tests.unit.test_format import read_manifest

# --- a stranger ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def theirs() -> dict[str, Any]:
    return read_manifest(golden.GOLDEN, golden.CHECKPOINT)


def entry(text: str) -> dict[str, str]:
    """Section 9: the offset of each reader in an entry of a log with names."""
    version, _, *lines = text.split("\n")
    assert version == "v2"
    return dict(line.split(":", 1) for line in lines)


def test_a_stranger_finds_the_readers_of_each_source_in_the_entries_that_are_to_be_there(
    theirs: dict[str, Any],
) -> None:
    source = theirs["source"]
    readers = {reader for names in source["names"].values() for reader in names}
    assert readers == {"clicks-0", "clicks-1"}
    assert {batch: set(entry(text)) for batch, text in source["rewrite"]["entries"].items()} == {
        str(source["batch_id"] - 1): readers,
        str(source["batch_id"]): readers,
    }


def test_a_stranger_finds_up_to_where_a_parked_source_was_read(theirs: dict[str, Any]) -> None:
    assert theirs["source"]["parked"] == {"orders": {"orders-0": '{"logOffset":12}', "orders-1": None}}


def test_a_stranger_finds_when_all_that_waits_for_event_time_has_come_out(theirs: dict[str, Any]) -> None:
    """Null: nothing would; left out: as `event_time`."""
    timers = theirs["stages"][golden.OPERATOR]["timers"][golden.OPERATOR]
    found = {tuple(timer["groups"]): timer.get("last", timer["event_time"]) for timer in timers}
    assert found == {(0, 4): golden.NOON + 5 * golden.MINUTE, (4, 8): None, (8, 12): golden.NOON + 2 * golden.MINUTE}


def test_a_stranger_finds_parts_of_a_source_and_when_a_stage_was_rescaled(theirs: dict[str, Any]) -> None:
    parts = theirs["sources"]["clicks"]["parts"]
    assert parts == {"clicks/3": [golden.NOON + golden.MINUTE, golden.NOON + 10 * golden.MINUTE]}
    assert theirs["stages"][golden.OPERATOR]["rescaled"] == 5


# --- this library -------------------------------------------------------------------------------------------------


@pytest.fixture
def ours() -> values.Manifest:
    return Checkpoints(LocalStore(golden.GOLDEN)).read(CheckpointId(golden.CHECKPOINT))


def test_every_optional_field_is_read_as_it_was_written(ours: values.Manifest) -> None:
    assert ours == golden.manifest()


def test_the_manifest_is_written_again_byte_for_byte(ours: values.Manifest) -> None:
    assert encode_manifest(ours) == (golden.GOLDEN / "manifests" / "0000000007.json").read_bytes()


def test_no_optional_field_of_source_and_clocks_is_left_out(ours: values.Manifest) -> None:
    """A field that is added later needs a golden file of its own."""
    for value in (ours.source, *ours.sources.values(), *ours.stages.values()):
        unset = [name for name in value.__struct_fields__ if getattr(value, name) is msgspec.UNSET]
        assert unset == [], type(value).__name__
