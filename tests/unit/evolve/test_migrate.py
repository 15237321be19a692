"""Migrations: a function of the user makes new state of old, before the query starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as pen
from penstock.errors import CheckpointMismatch, ConfigError, MigrationFailed
from penstock.observe.events import StateMigrated, decode_events
from penstock.testing.inline import stream_of
from tests.support.changing import BATCHES, ROWS, Changing
from tests.support.engine_jobs import SCHEMA, batches_of

INT64, TEXT = pa.int64(), pa.string()
USERS = 7


@pytest.fixture
def job(tmp_path: Path, table: str) -> Changing:
    return Changing(tmp_path, table, batches=[{"orders": part["source"]} for part in batches_of(ROWS, BATCHES)])


def counted(job: Changing, kind: pa.DataType = INT64, name: str = "n") -> type[pen.KeyedProcess]:
    """Numbers the rows of a key, with its count as a number or as text."""

    def process(self: Any, key: Any, rows: Any, state: Any, out: Any) -> None:
        job.clock.now += len(rows) * 0.004
        for row in rows:
            count = int(getattr(state, name) or 0) + 1
            setattr(state, name, str(count) if kind == TEXT else count)
            out.emit(user=row["user"], number=row["number"], nth=count)

    output = pa.schema([*SCHEMA, ("nth", INT64)])
    return type("Counted", (pen.KeyedProcess,), {"output": output, "process": process, name: pen.value_state(kind)})


def program(job: Changing, *made: Any) -> pen.Output:
    seen = stream_of(SCHEMA, "orders").key_by("user").process(counted(job, *made), name="seen")
    return seen.write(job.sink(), name="out")


def as_text(rows: pa.Table) -> pa.Table:
    return rows.set_column(rows.column_names.index("n"), "n", rows.column("n").cast(TEXT))


def test_state_goes_on_in_the_form_that_a_function_gave_it(job: Changing) -> None:
    """F4: "state gets any other form". Numbers go on, with rows in flight; counted in event and manifest."""
    job.start_and_leave_behind(program(job), rows=40)
    with pytest.raises(CheckpointMismatch, match=r"migrate=\{'seen': function\}"):
        job.finish(program(job, TEXT))
    manifest = job.start_and_leave_behind(program(job, TEXT), migrate={"seen": as_text})
    history = decode_events((job.folder / "events.jsonl").read_bytes())
    (migrated,) = [event for event in history if isinstance(event, StateMigrated)]
    assert (migrated.table, migrated.rows) == ("seen", USERS)
    assert migrated.bytes > 0
    assert manifest.counters["seen.migrated"] == USERS
    query = job.finish(program(job, TEXT), migrate={"seen": as_text})
    assert query.manifest().counters["seen.migrated"] == USERS, "done once"
    rows = job.rows()
    assert len(rows) == ROWS * BATCHES
    for user in range(USERS):
        mine = [row for row in rows if row["user"] == user]
        assert [row["nth"] for row in mine] == list(range(1, len(mine) + 1))


def test_state_that_fits_is_migrated_only_from_a_named_checkpoint(job: Changing) -> None:
    def doubled(rows: pa.Table) -> pa.Table:
        return rows.set_column(rows.column_names.index("n"), "n", pc.multiply(rows.column("n"), 1000))

    before = job.start_and_leave_behind(program(job), rows=40)
    unchanged = job.start_and_leave_behind(program(job), migrate={"seen": doubled}, retain=50)
    assert "seen.migrated" not in unchanged.counters
    del before
    job.finish(program(job), migrate={"seen": doubled}, restore=unchanged.checkpoint)
    assert max(row["nth"] for row in job.rows()) > 1000


def fail(rows: pa.Table) -> pa.Table:
    raise ValueError(f"what is {rows.num_rows}?")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (fail, r"the function raised ValueError: what is \d+\?.*user"),
        (lambda rows: rows, r"returned the columns \(user int64, n int64\), the operator's state has"),
        (lambda rows: as_text(rows).drop_columns(["n"]), "returned the columns"),
        (lambda rows: as_text(rows).slice(1), r"got \d+ rows and returned \d+"),
        (lambda rows: pa.concat_tables([as_text(rows)] * 2), r"got \d+ rows and returned \d+"),
        (lambda rows: as_text(rows).set_column(0, "user", pc.add(rows.column("user"), 1)), "moved a row from key"),
        (lambda rows: rows.to_pydict(), "the function returned dict"),
    ],
    ids=["raises", "same columns", "a column less", "fewer keys", "keys twice", "other keys", "no table"],
)
def test_a_function_that_would_lose_state_changes_nothing(
    job: Changing, function: Callable[[pa.Table], pa.Table], message: str
) -> None:
    """F4: and the old program goes on."""
    job.start_and_leave_behind(program(job), rows=40)
    before = {path: path.read_bytes() for path in (job.folder / "manifests").iterdir()}
    with pytest.raises(MigrationFailed, match=message):
        job.finish(program(job, TEXT), migrate={"seen": function})
    assert before == {path: path.read_bytes() for path in (job.folder / "manifests").iterdir()}
    job.finish(program(job))
    assert sorted(row["number"] for row in job.rows()) == list(range(ROWS * BATCHES))


def test_a_crash_in_the_middle_leaves_the_old_checkpoint_and_is_repeated(job: Changing) -> None:
    """F4."""
    job.start_and_leave_behind(program(job), rows=40)

    def die(rows: pa.Table) -> pa.Table:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.finish(program(job, TEXT), migrate={"seen": die})
    assert not list((job.folder / "state").rglob("*-am*.arrow"))
    job.finish(program(job, TEXT), migrate={"seen": as_text})
    assert max(row["nth"] for row in job.rows()) == -(-ROWS * BATCHES // USERS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"migrate": {"nothing": as_text}}, "'nothing' is no state of the pipeline"),
        ({"migrate": {"seen": 3}}, "functions by operator"),
        ({"migrate": ["seen"]}, "functions by operator"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(job: Changing, options: dict[str, Any], message: str) -> None:
    job.start_and_leave_behind(program(job))
    with pytest.raises(ConfigError, match=message):
        job.finish(program(job, TEXT), **options)


def test_the_plan_tells_what_is_migrated(job: Changing) -> None:
    """F2: without calling the function."""
    job.start_and_leave_behind(program(job))
    plan = program(job, TEXT).start(job.folder, dry_run=True, max_parallelism=16, migrate={"seen": fail})
    state = next(line for line in plan.lines if line.kind == "state")
    assert (state.word, state.detail, state.rows) == ("converted", "by your function", USERS)
