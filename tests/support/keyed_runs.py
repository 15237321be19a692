"""Random runs of a job into a bucketed table, against a plain computation over its input.

A run is cut into several queries of other parallelism; each rescales at random epochs, leaves rows in flight, and holds
its commits back, or never commits and leaves that to the next. Between and after them
upkeep merges sorted runs. ``python -m tests.support.keyed_runs 20`` runs 20 seeds.
"""

from __future__ import annotations

import dataclasses
import random
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import Fenced
from penstock.observe.events import EpochPublished, Event
from penstock.protocol.sorted_runs import Tiering
from penstock.sinks.base import CommitReceipt
from penstock.sinks.paimon.commit import PaimonCommitter
from penstock.sinks.paimon.sink import Paimon
from penstock.sinks.paimon.upkeep import runs
from penstock.sinks.paimon.upkeep.keeper import PaimonKeeper
from penstock.sinks.upkeep import Upkeep
from penstock.testing.inline import InlineRun, stream_of
from tests.support.engine_jobs import FakeClock
from tests.support.readers import merged_by_polars, merged_by_pypaimon

SCHEMA = pa.schema(
    [
        ("day", pa.string()),
        ("user", pa.int64()),
        ("amount", pa.int64()),
        ("word", pa.string()),
        ("op", pa.string()),
    ]
)
Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A kind of table, and what it must show after some rows of one key."""

    arguments: dict[str, Any]
    shown: Callable[[list[Row]], Row | None]
    deletes: bool = False


def _last(rows: list[Row]) -> Row | None:
    return None if rows[-1]["op"] == "-D" else rows[-1]


def _non_null(rows: list[Row], column: str) -> Any:
    return next((row[column] for row in reversed(rows) if row[column] is not None), None)


def _updated(rows: list[Row]) -> Row:
    return rows[-1] | {"amount": _non_null(rows, "amount"), "word": _non_null(rows, "word")}


def _aggregated(rows: list[Row]) -> Row:
    amounts = [row["amount"] for row in rows if row["amount"] is not None]
    return _updated(rows) | {"amount": sum(amounts) if amounts else None}


def _first(rows: list[Row]) -> Row:
    return rows[0]


_SUMS = {"merge_engine": "aggregation", "options": {"fields.amount.aggregate-function": "sum"}}
_BY_DAY = {"primary_key": ["day", "user"], "partition_by": ["day"]}
CASES: dict[str, Case] = {
    "deduplicate": Case({"primary_key": ["user"], "buckets": 3, "row_kind": "op"}, _last, deletes=True),
    "deduplicate, partitioned": Case(_BY_DAY | {"buckets": 2, "row_kind": "op"}, _last, deletes=True),
    "partial-update": Case({"primary_key": ["user"], "merge_engine": "partial-update"}, _updated),
    "partial-update, partitioned": Case(_BY_DAY | {"buckets": 1, "merge_engine": "partial-update"}, _updated),
    "aggregation": Case({"primary_key": ["user"]} | _SUMS, _aggregated),
    "aggregation, partitioned": Case(_BY_DAY | _SUMS, _aggregated),
    "first-row": Case({"primary_key": ["user"], "merge_engine": "first-row"}, _first),
    "first-row, partitioned": Case(_BY_DAY | {"merge_engine": "first-row"}, _first),
}


class _Gate:
    """Commits wait until it opens; a gate that is lost lets none through."""

    def __init__(self, *, lost: bool) -> None:
        self.open, self.lost = threading.Event(), lost


_gates: dict[str, _Gate] = {}


class _HeldCommitter(PaimonCommitter):
    def __init__(self, warehouse: str, table: str, commit_user: str) -> None:
        super().__init__(warehouse, table, commit_user)
        self._gate = _gates[warehouse]

    def commit(self, *args: Any, **kwargs: Any) -> CommitReceipt:
        assert self._gate.open.wait(60), "the test forgot to open the gate"
        if self._gate.lost:
            raise Fenced("the driver is lost before it commits")
        return super().commit(*args, **kwargs)


@dataclass(frozen=True)
class _Held(Paimon):
    def open_committer(self, commit_user: str) -> PaimonCommitter:
        return _HeldCommitter(self.warehouse, self.table, commit_user)


def random_batches(dice: random.Random, case: Case) -> list[pa.Table]:
    """Few users, so that a key meets itself within batches, epochs and queries."""
    ops = ["+I", "+U", "u", "-D"] if case.deletes else ["+I"]
    days = ["mon", "tue", "a/b ü"]

    def row() -> Row:
        amount = dice.choice([None, dice.randrange(1000)])
        word = dice.choice([None, "", "x" * dice.randrange(20)])
        return {
            "day": dice.choice(days), "user": dice.randrange(25), "amount": amount, "word": word,
            "op": dice.choice(ops),
        }  # fmt: skip

    tables = [[row() for _ in range(dice.randrange(1, 120))] for _ in range(dice.randrange(3, 8))]
    return [pa.Table.from_pylist(rows, schema=SCHEMA) for rows in tables]


def job(sink: Paimon, clock: FakeClock) -> pen.Output:
    """Hands every row on, at a cost that leaves rows behind the barrier."""

    class Slow(pen.KeyedProcess):
        output = SCHEMA

        def process(self, key: Any, rows: list[Row], state: Any, out: Any) -> None:
            clock.now += len(rows) * 0.001
            out.emit_many(rows)

    return stream_of(SCHEMA).key_by("user").process(Slow, name="slow").write(sink)


def run_queries(dice: random.Random, folder: Path, sink: Paimon, batches: list[pa.Table]) -> None:
    """Several queries, one after another, until all rows are in the table."""
    clock = FakeClock()
    run = InlineRun([{"source": table} for table in batches], clock)
    for last in (*([False] * dice.randrange(1, 4)), True):
        gate = _gates[sink.warehouse] = _Gate(lost=not last and dice.random() < 0.4)
        if dice.random() < 0.7 and (folder / "lake").exists():
            # Rows of the last query that wait for their commit, with lower numbers than those to come, are left out.
            merge_runs(sink, full=dice.random() < 0.3)
        if last or dice.random() < 0.3:
            gate.open.set()
        _one_query(
            dice, run, job(sink, clock), folder / "checkpoint", gate, epochs=None if last else dice.randrange(1, 6)
        )


def merge_runs(sink: Paimon, *, full: bool) -> None:
    """Upkeep's merging of sorted runs, until nothing is due."""
    with pytest.MonkeyPatch.context() as patch:
        if full:
            patch.setattr(runs, "tiering_of", lambda *_: Tiering(trigger=1, excess_percent=0))
        else:
            patch.setattr(runs, "tiering_of", lambda *_: Tiering(trigger=2))
        keeper = PaimonKeeper(sink.warehouse, sink.table, Upkeep(expire=False))
        while (report := keeper.step()).more:
            pass
        assert not report.failures, report.failures


def _one_query(
    dice: random.Random, run: InlineRun, output: pen.Output, checkpoint: Path, gate: _Gate, epochs: int | None
) -> None:
    box: list[pen.Query] = []
    started = threading.Event()
    seen = 0

    def listen(event: Event) -> None:
        nonlocal seen
        if not isinstance(event, EpochPublished) or event.kind == "takeover":
            return
        started.wait()
        seen += 1
        if dice.random() < 0.3:
            box[0].rescale(dice.randrange(1, 6))
        if dice.random() < 0.3:
            gate.open.set()
        if epochs is not None and seen == epochs:
            box[0].stop()

    query = run.start(
        output,
        on_event=listen,
        checkpoint=checkpoint,
        parallelism=dice.randrange(1, 6),
        epoch="50 ms",
        max_uncommitted=1000,
    )
    box.append(query)
    started.set()
    query._supervisor.loop.join()
    gate.open.set()
    try:
        assert query.await_termination(60), "the query hangs"
    except Fenced:
        assert gate.lost


def expected(case: Case, batches: list[pa.Table], key: tuple[str, ...]) -> list[Row]:
    """What the table must show, computed row by row."""
    by_key: dict[tuple[Any, ...], list[Row]] = {}
    for table in batches:
        for row in table.to_pylist():
            by_key.setdefault(tuple(row[name] for name in key), []).append(row)
    shown = filter(None, (case.shown(rows) for rows in by_key.values()))
    # The column with the row kinds is not stored.
    return [{name: value for name, value in row.items() if name != "op" or not case.deletes} for row in shown]


def ordered(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [(value is not None, str(value)) for value in row.values()])


def check_seed(name: str, seed: int, folder: Path) -> None:
    """Raises: `AssertionError` when the table does not show what it must."""
    dice = random.Random(f"{name} {seed}")
    case = CASES[name]
    sink = _Held(str(folder / "lake"), "db.t", **case.arguments)
    batches = random_batches(dice, case)
    run_queries(dice, folder, sink, batches)
    if dice.random() < 0.7:
        merge_runs(sink, full=dice.random() < 0.5)
    wanted = ordered(expected(case, batches, tuple(sink.primary_key)))
    for reader in (merged_by_pypaimon, merged_by_polars):
        found = ordered(reader(dataclasses.replace(sink)))
        assert found == wanted, f"{name}, seed {seed}, {reader.__name__}"


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        for name in CASES:
            with tempfile.TemporaryDirectory() as scratch:
                check_seed(name, number, Path(scratch))
        print(f"seed {number}: {len(CASES)} kinds of tables show what they must", flush=True)
