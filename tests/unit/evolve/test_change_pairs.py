"""Changes alone and in pairs in the engine without Spark, with rows in flight and a first epoch that fails.

`make changes` does the same on Spark, with a kill.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.engine.checkpoints import Checkpoints
from penstock.engine.cluster import JobFailed
from penstock.protocol.manifest import Manifest
from penstock.store import LocalStore
from penstock.testing.inline import InlineCluster, InlineRun, stream_of
from penstock.testing.tables import Memory, memory_table
from tests.support.changing_programs import (
    FILES,
    HOMELESS,
    KINDS,
    ROWS,
    USERS,
    Case,
    Program,
    Row,
    cases,
    outputs_of,
    wrong,
)
from tests.support.engine_jobs import FakeClock, run_until, savepoint_of

PAIRS = 8
ALWAYS = (
    ("added in front", "second output added"),
    ("filter added", "key changed"),
    ("from a savepoint", "sink renamed"),
    ("key changed", "places changed"),
    ("replaced", "second output added"),
)
"""Pairs in which one change makes the other harder."""
SLOW_S = 0.004


def drawn() -> list[Case]:
    """PENSTOCK_CHANGES=400 for all of them, PENSTOCK_CHANGES_SEED for others."""
    count = int(os.environ.get("PENSTOCK_CHANGES", str(PAIRS)))
    pairs = cases(len(KINDS) + count, int(os.environ.get("PENSTOCK_CHANGES_SEED", "1")))[len(KINDS) :]
    return [*(Case(number, kinds) for number, kinds in enumerate(ALWAYS)), *pairs]


class Changed:
    """One case: the program before and the program after over the same batches."""

    def __init__(self, case: Case, folder: Path, prefix: str) -> None:
        self.case, self.folder, self.prefix, self.clock = case, folder, prefix, FakeClock()
        self.home = folder / "here"

    def outputs(self, program: Program, prefix: str) -> tuple[pen.Output, ...]:
        schema = [("user", pa.int64()), ("number", pa.int64()), *([("price", pa.float64())] if program.column else [])]

        def spend() -> None:
            self.clock.now += SLOW_S

        orders = stream_of(pa.schema(schema), "orders")
        return tuple(outputs_of(program, orders, lambda table: Memory(f"{prefix}-{table}"), spend))

    def run(self, program: Program, accepted: list[int]) -> InlineRun:
        return InlineRun([{"orders": _file(number, program)} for number in range(FILES)], self.clock, accepted)

    def rows(self, prefix: str, table: str) -> list[Row]:
        found = memory_table(f"{prefix}-{table}")
        return [] if found.schema is None else found.rows().to_pylist()

    def leave_behind(self) -> Manifest:
        query = run_until(
            self.run(self.case.before, []), self.outputs(self.case.before, self.prefix),
            lambda event: event.kind != "takeover" and event.rows_in_flight > 100,
            checkpoint=self.home, epoch=0.1, parallelism=2, max_parallelism=16,
        )  # fmt: skip
        if self.case.how == "savepoint":
            savepoint_of(self.home, self.folder / "saved")
        return query.manifest()

    def first_start(self, manifest: Manifest) -> dict[str, Any]:
        match self.case.how:
            case "fork":
                return {"restore": self.home, "fork": True}
            case "savepoint":
                return {"restore": self.folder / "saved"}
            case _:
                return {"restore": manifest.checkpoint} if "reset" in self.case.options() else {}


def _file(number: int, program: Program) -> pa.Table:
    numbers = list(range(number * ROWS, (number + 1) * ROWS))
    columns: dict[str, Any] = {"user": [n % USERS for n in numbers], "number": numbers}
    if program.column:
        columns["price"] = pa.nulls(ROWS, pa.float64())
    return pa.table(columns)


@pytest.mark.parametrize("case", drawn(), ids=lambda case: case.name)
def test_two_changes_at_once_do_what_the_guide_says(case: Case, tmp_path: Path, table: str) -> None:
    """F1, F3, F5, F7."""
    changed = Changed(case, tmp_path, table)
    manifest = changed.leave_behind()
    assert manifest.rows_in_flight > 0
    then = {name: changed.rows(table, name) for name in ("rows", "copy", "totals_n", "totals_n_total")}
    prefix = f"{table}-fork" if case.how == "fork" else table
    home = tmp_path / "moved" if case.how != "restart" else changed.home
    batch = -1 if manifest.source.batch_id is None else manifest.source.batch_id
    run = changed.run(case.after, list(range(batch + 1)))

    def fail(cluster: InlineCluster) -> None:
        def before_job(_: object) -> None:
            raise JobFailed("simulated")

        cluster.before_job = before_job

    given = {"epoch": 0.1, "parallelism": case.after.parallelism, "max_parallelism": 16, **case.options()}
    run.prepare = fail
    first = run.start(
        *changed.outputs(case.after, prefix), checkpoint=home, epoch_retries=0,
        **{**given, **changed.first_start(manifest)},
    )  # fmt: skip
    with pytest.raises(pen.PenstockError, match="PEN-033"):
        first.await_termination(60)
    newest = Checkpoints(LocalStore(home)).newest()
    assert newest is not None
    assert newest.checkpoint == manifest.checkpoint + 1
    run.prepare = lambda _: None
    given.pop("reset", None)
    query = run.start(*changed.outputs(case.after, prefix), checkpoint=home, **given)
    assert query.await_termination(60)
    problems = list(wrong(case, lambda name: then.get(name, []), lambda name: changed.rows(prefix, name), batch + 1))
    assert problems == []
    listeners = {name for sink in query.manifest().sinks.values() for name in sink.listeners}
    assert ("told" in listeners) == case.after.listener


@pytest.mark.parametrize("kinds", HOMELESS, ids=" + ".join)
def test_rows_without_producer_and_without_reader_are_refused(
    kinds: tuple[str, str], tmp_path: Path, table: str
) -> None:
    case = Case(0, kinds)
    changed = Changed(case, tmp_path, table)
    manifest = changed.leave_behind()
    batch = manifest.source.batch_id
    assert batch is not None
    run = changed.run(case.after, list(range(batch + 1)))
    with pytest.raises(pen.PenstockError, match=r"drop_in_flight=\['.*-to-slow'\]"):
        run.start(
            *changed.outputs(case.after, table), checkpoint=changed.home, epoch=0.1, parallelism=2, max_parallelism=16,
            **case.options(),
        )  # fmt: skip
