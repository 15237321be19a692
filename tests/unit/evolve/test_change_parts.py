"""Every row of the table in docs/guides/change.md, in the engine without Spark, with rows in flight."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as pen
from penstock.engine.dryrun import plan_start
from penstock.engine.options import Config
from penstock.errors import CheckpointMismatch, ConfigError, Fenced, PenstockError, RestoreRefused
from penstock.graph.compiler import compile_pipeline
from penstock.observe.events import EpochPublished
from penstock.testing.inline import stream_of
from penstock.testing.tables import memory_table
from tests.support.changing import BATCHES, ROWS, Changing
from tests.support.engine_jobs import SCHEMA, batches_of

INT64 = pa.int64()
ALL = list(range(ROWS * BATCHES))
GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "change.md"


@pytest.fixture
def job(tmp_path: Path, table: str) -> Changing:
    return Changing(tmp_path, table, batches=[{"orders": part["source"]} for part in batches_of(ROWS, BATCHES)])


def orders() -> pen.Stream:
    return stream_of(SCHEMA, "orders")


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def counted(
    job: Changing, fields: tuple[str, ...] = ("n",), kind: pa.DataType = INT64, ttl: str | None = None
) -> type[pen.KeyedProcess]:
    """Numbers the rows of a key."""

    def process(self: Any, key: Any, rows: Any, state: Any, out: Any) -> None:
        job.clock.now += len(rows) * 0.004
        for row in rows:
            for name in fields:
                setattr(state, name, (getattr(state, name) or 0) + 1)
            out.emit(user=row["user"], number=row["number"], nth=int(state.n))

    output = pa.schema([*SCHEMA, ("nth", pa.int64())])
    declared = {name: pen.value_state(kind, ttl=ttl) for name in fields}
    return type("Counted", (pen.KeyedProcess,), {"output": output, "process": process, **declared})


@dataclass(frozen=True)
class Case:
    """A change: both programs, the options that allow it, and whether every row is numbered on from where it was."""

    before: Callable[[Changing], tuple[pen.Output, ...]]
    after: Callable[[Changing], tuple[pen.Output, ...]]
    options: dict[str, Any] = field(default_factory=dict)
    needs: str | None = None
    """What the refusal names when the options are left out."""
    numbered: bool = True


def plain(job: Changing) -> tuple[pen.Output, ...]:
    seen = orders().key_by("user").process(counted(job), name="seen")
    return (seen.write(job.sink(), name="out"),)


def parsed(job: Changing) -> tuple[pen.Output, ...]:
    seen = orders().map_batches(same, name="parse").key_by("user").process(counted(job), name="seen")
    return (seen.write(job.sink(), name="out"),)


def two_stateless(job: Changing) -> tuple[pen.Output, ...]:
    one = orders().map_batches(same, name="parse").map_batches(same, name="clean")
    return (one.key_by("user").process(counted(job), name="seen").write(job.sink(), name="out"),)


def reordered(job: Changing) -> tuple[pen.Output, ...]:
    one = orders().map_batches(same, name="clean").map_batches(same, name="parse")
    return (one.key_by("user").process(counted(job), name="seen").write(job.sink(), name="out"),)


def behind(job: Changing) -> tuple[pen.Output, ...]:
    seen = orders().key_by("user").process(counted(job), name="seen").map_batches(same, name="shown")
    return (seen.write(job.sink(), name="out"),)


def renamed(job: Changing) -> tuple[pen.Output, ...]:
    return (orders().key_by("user").process(counted(job), name="numbered").write(job.sink(), name="out"),)


def more_fields(job: Changing) -> tuple[pen.Output, ...]:
    seen = orders().key_by("user").process(counted(job, ("n", "m")), name="seen")
    return (seen.write(job.sink(), name="out"),)


def wider(job: Changing) -> tuple[pen.Output, ...]:
    seen = orders().key_by("user").process(counted(job, ("n",), pa.int32()), name="seen")
    return (seen.write(job.sink(), name="out"),)


def kept_for(ttl: str | None) -> Callable[[Changing], tuple[pen.Output, ...]]:
    def program(job: Changing) -> tuple[pen.Output, ...]:
        seen = orders().key_by("user").process(counted(job, ttl=ttl), name="seen")
        return (seen.write(job.sink(), name="out"),)

    return program


def digits(count: int) -> Callable[[Changing], tuple[pen.Output, ...]]:
    def program(job: Changing) -> tuple[pen.Output, ...]:
        seen = orders().key_by("user").process(counted(job, kind=pa.decimal128(count, 0)), name="seen")
        return (seen.write(job.sink(), name="out"),)

    return program


def second_output(job: Changing) -> tuple[pen.Output, ...]:
    read = orders()
    seen = read.key_by("user").process(counted(job), name="seen")
    other = read.map_batches(same, name="copied")
    return seen.write(job.sink(), name="out"), other.write(job.sink("copy"), name="copy")


def second_source(job: Changing) -> tuple[pen.Output, ...]:
    both = orders().union(stream_of(SCHEMA, "late"), name="both")
    return (both.key_by("user").process(counted(job), name="seen").write(job.sink(), name="out"),)


def other_sink(job: Changing) -> tuple[pen.Output, ...]:
    return (orders().key_by("user").process(counted(job), name="seen").write(job.sink(), name="results"),)


def another_operator(job: Changing) -> tuple[pen.Output, ...]:
    return (orders().key_by("user").process(counted(job), name="fresh").write(job.sink(), name="out"),)


class Told(pen.CommitListener):
    """Counts commits."""

    @property
    def name(self) -> str:
        return "told"

    def on_commit(self, info: Any, state: bytes) -> bytes:
        return str(int(state or b"0") + 1).encode()


def listened(job: Changing) -> tuple[pen.Output, ...]:
    seen = orders().key_by("user").process(counted(job), name="seen")
    return (seen.write(job.sink(), name="out", commit_listeners=[Told()]),)


CASES = {
    "an operator without state is added in front": Case(plain, parsed),
    "an operator without state is removed": Case(parsed, plain),
    "an operator without state is added behind": Case(plain, behind),
    "an operator without state is added between": Case(parsed, two_stateless),
    "operators without state change places": Case(two_stateless, reordered),
    "an operator is renamed": Case(plain, renamed, {"renamed": {"seen": "numbered"}}, "renamed={'seen': 'new name'}"),
    "a field of state is added": Case(plain, more_fields),
    "a field of state is removed": Case(more_fields, plain, {"forget": ["seen.m"]}, "forget=['seen.m']"),
    "a field of state gets a wider type": Case(wider, plain),
    "a field of state gets a narrower type": Case(plain, wider, {"reset": ["seen"]}, "reset=['seen']", numbered=False),
    "a decimal field of state gets more digits": Case(digits(9), digits(20)),
    "a field of state gets a time to live": Case(plain, kept_for("1 day")),
    "a field of state gets another time to live": Case(kept_for("2 days"), kept_for("1 day")),
    "a field of state loses its time to live": Case(kept_for("1 day"), plain),
    "an operator with state is replaced": Case(
        plain, another_operator, {"forget": ["seen"]}, "forget=['seen']", numbered=False
    ),
    "a second output is added": Case(plain, second_output),
    "an output is removed": Case(second_output, plain, {"drop_in_flight": ["orders-to-copied"]}),
    "a source is added": Case(plain, second_source),
    "a source is removed": Case(second_source, plain),
    "a sink gets another name": Case(plain, other_sink),
    "a commit listener is added": Case(plain, listened),
    "a commit listener is removed": Case(listened, plain),
}


@pytest.mark.parametrize("name", CASES)
def test_a_changed_program_goes_on(job: Changing, name: str) -> None:
    """F1, F3, F5: each row once, in the order of its key; state goes on unless it was reset."""
    case = CASES[name]
    late = pa.table({"user": [], "number": []}, schema=SCHEMA)
    job.run.batches = [{**batch, "late": late} for batch in job.run.batches]
    before = job.start_and_leave_behind(*case.before(job), rows=40)
    done = len(job.rows())
    options = dict(case.options)
    if "reset" in options:
        options["restore"] = before.checkpoint
    if case.needs is not None:
        with pytest.raises(CheckpointMismatch) as caught:
            job.finish(*case.after(job))
        assert case.needs in str(caught.value)
    made = plan_start(
        compile_pipeline([part.node for part in case.after(job)]), Config.of(job.folder, max_parallelism=16, **options)
    )
    job.start_and_leave_behind(*case.after(job), **options)
    options.pop("restore", None)
    options.pop("reset", None)
    job.finish(*case.after(job), **options)
    rows = job.rows()
    assert Counter(row["number"] for row in rows) == Counter(ALL)
    for user in range(7):
        mine = [row for row in rows if row["user"] == user]
        assert [row["number"] for row in mine] == sorted(row["number"] for row in mine)
        if case.numbered:
            assert [row["nth"] for row in mine] == list(range(1, len(mine) + 1))
    assert done < len(ALL)
    assert made.lines


ELSEWHERE = {
    "an approximate count is of a column that gets another type": "unit/evolve/test_change_hashed.py",
    "state gets any other form": "unit/evolve/test_migrate.py",
    "the span of a deduplication changes": "unit/evolve/test_change_spans.py",
    "the span of a join changes a little": "unit/evolve/test_change_spans.py",
    "the span of a join changes much": "unit/evolve/test_change_spans.py",
    "the length of a window changes": "unit/evolve/test_change_spans.py",
    "sources change places": "spark/test_change_sources.py",
    "a source comes back": "spark/test_change_sources.py",
    "a column is added to the table of a sink": "sinks/test_paimon_evolve.py",
}
"""Rows of the table that need other data, other tables, or Spark: where they run."""


def test_every_case_is_in_the_guide_and_every_row_of_its_table_is_a_case() -> None:
    """The table is true because each row of it ran."""
    section = GUIDE.read_text().partition("## What you can change")[2].partition("\nMore cases")[0]
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")]
    assert {row for row in rows if row != "change"} == {*CASES, *ELSEWHERE}
    for file in set(ELSEWHERE.values()):
        text = (GUIDE.parents[2] / "tests" / file).read_text()
        assert all(f'"{row}"' in text for row, place in ELSEWHERE.items() if place == file), file


def test_a_filter_in_front_of_a_sink_is_passed_by_what_is_in_flight(job: Changing) -> None:
    """F5: the filter is fused with the writer."""
    read = orders().map_batches(job.slow, name="slow")
    job.start_and_leave_behind(read.write(job.sink(), name="out"))
    done = {row["number"] for row in job.rows()}
    kept = read.filter(pc.equal(pc.bit_wise_and(pc.field("number"), 1), 0), name="even")
    job.finish(kept.write(job.sink(), name="out"))
    assert {row["number"] for row in job.rows()} == done | {n for n in ALL if n % 2 == 0}


def test_a_reset_needs_the_checkpoint_that_loses_its_state(job: Changing) -> None:
    """Every restart would reset again."""
    job.start_and_leave_behind(*plain(job))
    with pytest.raises(RestoreRefused, match=r"reset=\('seen',\) without restore"):
        job.finish(*plain(job), reset=["seen"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"renamed": {"a": "seen", "b": "seen"}}, "two parts are renamed to 'seen'"),
        ({"renamed": {"old": "nothing"}}, "is not in the pipeline"),
        ({"forget": ["seen"]}, r"forget: 'seen' is in the pipeline"),
        ({"reset": ["nothing"]}, "'nothing' is not in the pipeline"),
        ({"renamed": ["seen"]}, "new names by old ones"),
        ({"forget": "seen"}, "a list of names"),
    ],
)
def test_options_that_cannot_be_meant_are_refused_before_anything_is_changed(
    job: Changing, options: dict[str, Any], message: str
) -> None:
    job.start_and_leave_behind(*plain(job))
    before = sorted(path.name for path in (job.folder / "manifests").iterdir())
    with pytest.raises(ConfigError, match=message):
        job.finish(*plain(job), **options)
    assert sorted(path.name for path in (job.folder / "manifests").iterdir()) == before


def test_the_old_program_can_be_restored_from_the_checkpoint_before_the_change(job: Changing) -> None:
    """F6."""
    job.start_and_leave_behind(*plain(job))
    before = job.query.manifest().checkpoint
    job.start_and_leave_behind(*renamed(job), renamed={"seen": "numbered"}, retain=50)
    with pytest.raises(CheckpointMismatch, match="forget=\\['numbered'\\]"):
        job.finish(*plain(job))
    plan = plan_start(
        compile_pipeline([part.node for part in plain(job)]), Config.of(job.folder, max_parallelism=16, restore=before)
    )
    assert plan.fits
    assert {line.word for line in plan.lines} == {"carried"}


def test_going_back_with_the_tables_set_back_gives_the_old_programs_results(job: Changing) -> None:
    """F6: the new program has run for a while, and everything of it is forgotten."""
    job.start_and_leave_behind(*plain(job))
    before = job.query.manifest().checkpoint
    rows = memory_table(job.table).snapshots[:]
    job.start_and_leave_behind(*renamed(job), renamed={"seen": "numbered"}, retain=50)
    memory_table(job.table).snapshots[:] = rows
    job.finish(*plain(job), restore=before)
    assert Counter(row["number"] for row in job.rows()) == Counter(ALL)
    for user in range(7):
        mine = [row["nth"] for row in job.rows() if row["user"] == user]
        assert mine == list(range(1, len(mine) + 1))


@pytest.mark.parametrize("retain", [1, 2, 5])
def test_the_plan_tells_until_when_the_checkpoint_before_the_change_is_kept(job: Changing, retain: int) -> None:
    """F6: one checkpoint earlier it can still be restored."""
    job.start_and_leave_behind(*plain(job), retain=3)
    before = job.query.manifest().checkpoint
    (output,) = renamed(job)
    options = {"renamed": {"seen": "numbered"}, "retain": retain, "max_parallelism": 16, "epoch": 0.1}
    plan = output.start(job.folder, dry_run=True, **options)
    assert plan.kept_until == before + retain
    assert f"retain={retain} keeps that checkpoint until checkpoint {before + retain} is published" in str(plan)
    kept: list[bool] = []

    def watch(event: Any) -> None:
        if isinstance(event, EpochPublished) and plan.kept_until is not None:
            there = (job.folder / "manifests" / f"{before:010d}.json").exists()
            retired = (job.folder / "manifests" / f"{before:010d}.retired").exists()
            if event.checkpoint < plan.kept_until:
                kept.append(there and not retired)

    job.finish(*renamed(job), on_event=watch, **options)
    assert kept.count(True) == len(kept) == max(0, retain - 1)
    assert before not in job.query_ids()


def test_a_change_made_while_the_old_driver_runs_takes_over_and_the_old_one_is_told(job: Changing) -> None:
    """F1, C9: nothing is lost or doubled, and the old driver ends with a coded error."""
    begun = threading.Event()

    def watch(event: Any) -> None:
        if isinstance(event, EpochPublished) and event.rows_in_flight:
            begun.set()

    old = job.run.start(
        *plain(job), checkpoint=job.folder, epoch=0.1, parallelism=2, max_parallelism=16, on_event=watch
    )
    assert begun.wait(60)
    job.finish(*renamed(job), renamed={"seen": "numbered"})
    with suppress(Fenced):
        old.await_termination(60)
    assert not old.is_active
    assert old.exception() is None or isinstance(old.exception(), Fenced)
    assert Counter(row["number"] for row in job.rows()) == Counter(ALL)


def test_a_dry_run_changes_nothing_and_tells_rows_and_bytes(job: Changing) -> None:
    """F2."""
    job.start_and_leave_behind(*parsed(job))
    files = {path: path.read_bytes() for path in job.folder.rglob("*") if path.is_file()}
    (output,) = plain(job)
    plan = output.start(job.folder, dry_run=True, max_parallelism=16)
    assert files == {path: path.read_bytes() for path in job.folder.rglob("*") if path.is_file()}
    state = next(line for line in plan.lines if line.kind == "state")
    assert state.word == "carried"
    assert 0 < state.rows <= 7
    assert state.bytes > 0
    assert "the query can start" in str(plan)
    assert '"fits": true' in plan.to_json()
    (other,) = another_operator(job)
    refused = other.start(job.folder, dry_run=True, max_parallelism=16)
    assert not refused.fits
    assert "forget=['seen']" in str(refused)
    new = other.start(job.folder / "new", dry_run=True)
    assert new.checkpoint is None
    assert not (job.folder / "new").exists()


def test_another_max_parallelism_is_refused(job: Changing) -> None:
    job.start_and_leave_behind(*plain(job))
    with pytest.raises(PenstockError, match="max_parallelism"):
        job.finish(*plain(job), max_parallelism=32)
