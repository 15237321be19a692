"""Options that stay in a program that begins once more elsewhere, and plans that tell what a start does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as pen
from penstock.cli.plan import given
from penstock.engine.dryrun import plan_start
from penstock.engine.options import Config
from penstock.errors import TableMismatch, TablePositionMismatch
from penstock.graph.compiler import compile_pipeline
from penstock.protocol.manifest import TableMark
from penstock.testing.inline import stream_of
from penstock.testing.tables import Memory
from tests.support.changing import BATCHES, ROWS, Changing
from tests.support.engine_jobs import SCHEMA, batches_of, savepoint_of


@pytest.fixture
def job(tmp_path: Path, table: str) -> Changing:
    return Changing(
        tmp_path / "first", table, batches=[{"orders": part["source"]} for part in batches_of(ROWS, BATCHES)]
    )


def program(job: Changing, kind: Any = "bigint", sink: Any = None) -> pen.Output:
    def process(self: Any, key: Any, rows: Any, state: Any, out: Any) -> None:
        job.clock.now += len(rows) * 0.004
        for row in rows:
            state.n = (state.n or 0) + 1
            out.emit(user=row["user"], number=row["number"], nth=int(state.n))

    output = pa.schema([*SCHEMA, ("nth", pa.int64())])
    counted = type("Counted", (pen.KeyedProcess,), {"output": output, "process": process, "n": pen.value_state(kind)})
    seen = stream_of(SCHEMA, "orders").key_by("user").process(counted, name="seen")
    return seen.write(sink or job.sink(), name="out")


def thousandfold(rows: pa.Table) -> pa.Table:
    return rows.set_column(rows.column_names.index("n"), "n", pc.multiply(rows.column("n"), 1000))


def plan(output: pen.Output, folder: Path, **options: Any) -> Any:
    return plan_start(compile_pipeline([output.node]), Config.of(folder, max_parallelism=16, **options))


def test_a_migration_that_was_done_is_not_done_again_in_a_folder_that_begins_from_a_savepoint(
    job: Changing, tmp_path: Path
) -> None:
    """Only who names a checkpoint says that values whose columns stay the same are to be changed."""
    manifest = job.start_and_leave_behind(program(job), rows=40)
    savepoint_of(job.folder, tmp_path / "saved")
    options: dict[str, Any] = {"migrate": {"seen": thousandfold}}
    again = plan(program(job), tmp_path / "next", restore=str(tmp_path / "saved"), **options)
    assert {line.word for line in again.lines if line.kind == "state"} == {"carried"}
    named = f"{tmp_path / 'saved'}@{manifest.checkpoint}"
    meant = plan(program(job), tmp_path / "next", restore=named, **options)
    assert {line.word for line in meant.lines if line.kind == "state"} == {"converted"}


def test_all_rows_in_flight_can_be_dropped_from_the_command_line() -> None:
    assert given({"drop_in_flight": ("all",)}) == {"drop_in_flight": "all"}
    assert given({"drop_in_flight": ("slow",)}) == {"drop_in_flight": ("slow",)}


class Marked(Memory):
    """Tells when its table was made."""

    def mark(self) -> TableMark:
        return TableMark(name=self.name, made_at_ms=len(self.name))


def test_a_plan_tells_that_a_sink_points_to_another_table(job: Changing) -> None:
    """As the start does, which is refused."""
    manifest = job.start_and_leave_behind(program(job, sink=Marked(job.table)), rows=40)
    other = program(job, sink=Marked(job.table + "other"))
    told = plan(other, job.folder)
    (line,) = [line for line in told.lines if line.kind == "sink"]
    assert not told.fits
    assert "reset=['out']" in line.detail
    with pytest.raises(TableMismatch):
        job.finish(other)
    assert plan(other, job.folder, reset=["out"], restore=manifest.checkpoint).fits
    assert plan(program(job, sink=Marked(job.table)), job.folder).fits


def test_a_sink_that_comes_back_to_its_table_needs_another_name(job: Changing) -> None:
    """The table knows commits of that name which the checkpoint does not; it may be an older one that is restored."""

    def copied(name: str) -> tuple[pen.Output, ...]:
        read = stream_of(SCHEMA, "orders")
        rows = read.map_batches(job.slow, name="slow").write(job.sink(), name="out")
        return (rows, read.map_batches(lambda batch: batch, name="copied").write(job.sink("copy"), name=name))

    job.start_and_leave_behind(*copied("copy"), rows=40)
    job.start_and_leave_behind(copied("copy")[0], drop_in_flight=["orders-to-copied"])
    with pytest.raises(TablePositionMismatch) as caught:
        job.finish(*copied("copy"))
    assert "give it a name that it did not have" in caught.value.next_step
    before = len(job.rows("copy"))
    job.finish(*copied("copies"))
    assert before < len(job.rows("copy")) <= ROWS * BATCHES
