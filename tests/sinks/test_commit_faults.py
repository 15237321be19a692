"""A small part of the seeded fault runs (see `commit_faults`): a fixed set, and fresh seeds that are printed."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.engine import agreement as engine_agreement
from penstock.errors import PenstockError
from penstock.protocol.commit import Agreed, SinkStanding, TableHistory, Verdict, answered, reconcile
from penstock.protocol.manifest import SinkState
from penstock.sinks.paimon.fold import SEQUENCE
from penstock.sinks.paimon.upkeep import keyed
from tests.sinks.commit_faults import run_memory, run_paimon
from tests.support.seeds import FRESH, drawn


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "pypaimon")
    caplog.set_level(logging.CRITICAL, "penstock")


def test_drivers_that_crash_hang_and_race_commit_each_row_once() -> None:
    """C3, C4, C5, C8, C9: on tables in memory."""
    fresh = random.randrange(10**9)
    print(f"fresh seeds: {fresh} to {fresh + 19}")
    for seed in (*range(40), *range(fresh, fresh + 20)):
        run_memory(seed)


@pytest.mark.parametrize("seed", [9, 11, FRESH])
def test_drivers_that_crash_hang_and_race_commit_each_row_once_to_paimon(seed: int | None, tmp_path: Path) -> None:
    """C3, C4, C5, C8, C9: on real tables, with faults right before and after a snapshot becomes visible."""
    run_paimon(drawn(seed), tmp_path)


def test_a_seed_always_gives_the_same_world() -> None:
    assert run_memory(17).events == run_memory(17).events


def blind(sink: SinkState, table: TableHistory, *, restored: bool = False) -> Verdict:
    """As if a snapshot that is missing had never held anything."""
    return reconcile(sink, replace(table, gone=None), restored=restored)


def floor_too_high(standing: SinkStanding, agreed: Agreed) -> SinkStanding:
    """As if a snapshot could be remembered while the commit in it is not acknowledged."""
    after = answered(standing, agreed)
    floors = [landed.receipt.snapshot for landed in agreed.landed]
    return replace(after, sink=msgspec.structs.replace(after.sink, floor=floors[-1])) if floors else after


def first_failure() -> str:
    """What the first world of 400 that fails says."""
    for seed in range(1, 801, 2):
        try:
            run_memory(seed)
        except (AssertionError, PenstockError, RuntimeError) as error:
            return str(error)
    return "nothing failed"


def test_the_worlds_find_a_commit_that_is_doubled_when_its_snapshot_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault put back: other engines expire the only snapshot that proves an unacknowledged commit."""
    monkeypatch.setattr(engine_agreement, "reconcile", blind)
    assert "doubled" in first_failure()


def test_the_worlds_find_a_floor_above_a_commit_that_is_not_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_agreement, "answered", floor_too_high)
    assert first_failure() != "nothing failed"


def test_the_worlds_find_merged_rows_that_claim_to_be_newer_than_rows_that_wait(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A merge must keep sequence numbers: rows that are committed later were numbered before it."""
    rows_of = keyed._Folding.rows_of

    def renumbered(self: object, part: object) -> Iterator[pa.Table]:
        for rows in rows_of(self, part):  # type: ignore[arg-type]
            place = rows.schema.get_field_index(SEQUENCE)
            numbers = pc.add(rows.column(place), 1 << 40)
            yield rows.set_column(place, rows.schema.field(place), numbers)

    monkeypatch.setattr(keyed._Folding, "rows_of", renumbered)
    with pytest.raises(AssertionError, match="wrong order"):
        run_paimon(3, tmp_path)
