"""Records that fail become dead letters exactly once, and all others pass as if nothing had happened (D8)."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.errors import PipelineError, TooManyErrors
from penstock.operators.failures.failing import run_passing
from penstock.testing import Harness
from penstock.testing.inline import InlineRun, stream_of
from penstock.testing.tables import Memory, memory_table
from tests.support.engine_jobs import SCHEMA, FakeClock, batches_of, crash_in_job, slow_map

Row = dict[str, Any]
Build = Callable[..., pen.Stream]


def bad(number: int) -> bool:
    return number % 40 == 7


def refuse_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    if any(map(bad, batch["number"].to_pylist())):
        raise ValueError("a bad number")
    return batch


def refuse_mask(batch: pa.RecordBatch) -> pa.Array:
    return pc.is_valid(refuse_batch(batch)["number"])


def refuse_row(row: Row) -> list[Row]:
    if bad(row["number"]):
        raise ValueError("a bad number")
    return [row]


def misfit_row(row: Row) -> list[Row]:
    return [{**row, "number": "?" if bad(row["number"]) else row["number"]}]


async def refuse_call(row: Row) -> Row:
    return refuse_row(row)[0]


async def misfit_call(row: Row) -> Row:
    return misfit_row(row)[0]


KINDS: dict[str, Build] = {
    "map_batches": lambda stream, **options: stream.map_batches(refuse_batch, **options),
    "filter": lambda stream, **options: stream.filter(refuse_mask, **options),
    "flat_map": lambda stream, **options: stream.flat_map(refuse_row, **options),
    "flat_map misfit": lambda stream, **options: stream.flat_map(misfit_row, **options),
    "map_async": lambda stream, **options: stream.map_async(refuse_call, retries=0, **options),
    "map_async misfit": lambda stream, **options: stream.map_async(misfit_call, retries=0, **options),
}


@pytest.mark.parametrize("kind", KINDS)
def test_good_rows_pass_and_bad_ones_become_dead_letters_once(tmp_path: Path, table: str, kind: str) -> None:
    """D8, A6: with barriers and lost reports in the middle."""
    clock = FakeClock()
    stream = stream_of(SCHEMA).map_batches(slow_map(clock), name="slow")
    output = KINDS[kind](stream, name="careful", on_error="dead_letter").write(Memory(table))
    run = InlineRun(batches_of(300, 3), clock, prepare=crash_in_job({1, 4}))
    run.start(
        output, checkpoint=tmp_path, epoch="100 ms", epoch_retries=3, dead_letters=Memory(f"{table}-letters")
    ).await_termination(60)
    good = memory_table(table).rows()["number"].to_pylist()
    assert Counter(good) == Counter(n for n in range(900) if not bad(n))
    letters = memory_table(f"{table}-letters").rows().to_pylist()
    records = [json.loads(letter["record"]) for letter in letters]
    assert Counter(record["number"] for record in records) == Counter(filter(bad, range(900)))
    assert {letter["operator"] for letter in letters} == {"careful"}
    assert {letter["error"] for letter in letters} == {"BadOutput" if "misfit" in kind else "ValueError"}
    if "misfit" not in kind:
        assert all(letter["message"].startswith("a bad number (at ") for letter in letters)
    assert all(letter["checkpoint"] > 0 and letter["subtask"] in range(4) for letter in letters)


def test_a_dead_letter_tells_when_the_record_was_and_when_it_failed(tmp_path: Path, table: str) -> None:
    """D8."""
    schema = pa.schema([("number", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("raw", pa.binary())])
    moment = datetime(2026, 11, 16, 3, 0, tzinfo=UTC)
    batch = pa.table({"number": [7], "ts": [moment], "raw": [b"\x01\xff" * 1000]}, schema=schema)
    output = stream_of(schema, event_time="ts").flat_map(refuse_row, name="careful", on_error="dead_letter")
    run = InlineRun([{"source": batch}], time.monotonic)
    run.start(
        output.write(Memory(table)), checkpoint=tmp_path, dead_letters=Memory(f"{table}-letters")
    ).await_termination(30)
    (letter,) = memory_table(f"{table}-letters").rows().to_pylist()
    assert letter["event_time"] == moment
    assert abs((letter["processing_time"] - datetime.now(UTC)).total_seconds()) < 60
    assert json.loads(letter["record"]) == {"number": 7, "ts": str(moment), "raw": "01ff" * 1000}


def test_operators_of_several_stages_share_a_table_and_one_may_have_its_own(tmp_path: Path, table: str) -> None:
    """D8: what the side output is taken of goes where the user says."""
    first = stream_of(SCHEMA).flat_map(refuse_row, name="first", on_error="dead_letter")
    second = first.map_async(refuse_odd, retries=0, name="second", on_error="dead_letter")
    third = second.flat_map(refuse_all, name="third", on_error="dead_letter")
    outputs = [third.write(Memory(table), name="out"), third.side("dead_letters").write(Memory(f"{table}-3"), name="x")]
    run = InlineRun(batches_of(100, 1), time.monotonic)
    run.start(*outputs, checkpoint=tmp_path, max_error_rate=1, dead_letters=Memory(f"{table}-12")).await_termination(30)
    assert memory_table(table).rows().num_rows == 0
    shared = Counter(memory_table(f"{table}-12").rows()["operator"].to_pylist())
    assert shared == {"first": sum(map(bad, range(100))), "second": sum(not bad(n) and n % 2 for n in range(100))}
    assert set(memory_table(f"{table}-3").rows()["operator"].to_pylist()) == {"third"}


async def refuse_odd(row: Row) -> Row:
    if row["number"] % 2:
        raise ValueError("odd")
    return row


def refuse_all(row: Row) -> list[Row]:
    raise KeyError(row["number"])


def test_a_broken_function_stops_the_query_before_everything_becomes_a_dead_letter(tmp_path: Path, table: str) -> None:
    """D8: nothing of the epoch is published, and the message shows a record."""
    run = InlineRun(batches_of(5000, 1), time.monotonic)
    output = stream_of(SCHEMA).flat_map(refuse_all, name="broken", on_error="dead_letter").write(Memory(table))
    query = run.start(output, checkpoint=tmp_path, epoch=None, dead_letters=Memory(f"{table}-letters"))
    with pytest.raises(TooManyErrors) as caught:
        query.await_termination(30)
    assert "broken: 5,000 of 5,000 records failed" in str(caught.value)
    assert "KeyError: 0" in str(caught.value)
    assert memory_table(f"{table}-letters").rows().num_rows == 0
    assert query.manifest().source.batch_id is None


def test_rows_of_small_epochs_are_judged_together(tmp_path: Path, table: str) -> None:
    """D8: a broken function on a thin stream is noticed, too, after a thousand rows."""
    run = InlineRun(batches_of(300, 6), time.monotonic)
    output = stream_of(SCHEMA).flat_map(refuse_all, name="broken", on_error="dead_letter").write(Memory(table))
    query = run.start(output, checkpoint=tmp_path, dead_letters=Memory(f"{table}-letters"))
    with pytest.raises(TooManyErrors, match="1,200 of 1,200"):
        query.await_termination(30)
    assert query.manifest().source.batch_id == 2


def test_a_rate_below_the_limit_passes_and_is_counted(tmp_path: Path, table: str) -> None:
    """D8."""
    run = InlineRun(batches_of(2000, 2), time.monotonic)
    output = stream_of(SCHEMA).flat_map(refuse_row, name="careful", on_error="dead_letter").write(Memory(table))
    query = run.start(output, checkpoint=tmp_path, max_error_rate=0.026, dead_letters=Memory(f"{table}-letters"))
    query.await_termination(30)
    assert query.manifest().counters["careful.dead_letters"] == sum(map(bad, range(4000)))


@pytest.mark.parametrize(
    ("on_error", "letters", "message"),
    [
        ("dead_letter", None, "go nowhere"),
        ("stop", Memory("x"), "nothing writes dead letters"),
        ("skip", None, "on_err"),
    ],
)
def test_dead_letters_without_a_table_and_a_table_without_them_are_refused(
    tmp_path: Path, table: str, on_error: Any, letters: Memory | None, message: str
) -> None:
    """E5."""
    with pytest.raises(PipelineError, match=message):
        InlineRun([], time.monotonic).start(
            stream_of(SCHEMA).flat_map(refuse_row, on_error=on_error).write(Memory(table)),
            checkpoint=tmp_path,
            dead_letters=letters,
        )


class Total(pen.KeyedProcess):
    """Adds numbers up, and fails in the middle of a call, when state has changed already."""

    output = SCHEMA.append(pa.field("total", pa.int64()))
    total = pen.value_state(pa.int64())

    def process(self, key: Row, rows: list[Row], state: Any, out: Any) -> None:
        for row in rows:
            state.total = (state.total or 0) + row["number"]
            out.emit(user=key["user"], number=row["number"], total=state.total if row["number"] % 80 != 47 else "?")
            if row["number"] % 80 == 7:
                raise ValueError("a bad number")


def test_state_is_as_if_a_failing_row_had_never_come(tmp_path: Path, table: str) -> None:
    """D8, A6, A8: for code with state, whether it raises or gives what does not fit."""
    clock = FakeClock()
    output = (
        stream_of(SCHEMA)
        .map_batches(slow_map(clock), name="slow")
        .key_by("user")
        .process(Total, name="total", on_error="dead_letter")
        .write(Memory(table))
    )
    run = InlineRun(batches_of(400, 3), clock, prepare=crash_in_job({1, 4}))
    run.start(
        output,
        checkpoint=tmp_path,
        epoch="100 ms",
        epoch_retries=3,
        parallelism={"slow": 1, "total": 3},
        dead_letters=Memory(f"{table}-letters"),
    ).await_termination(60)
    rows = memory_table(table).rows().to_pylist()
    for user in range(7):
        totals = [row["total"] for row in rows if row["user"] == user]
        assert totals == list(accumulate(n for n in range(1200) if n % 7 == user and not bad(n)))
    letters = memory_table(f"{table}-letters").rows().to_pylist()
    assert Counter((json.loads(letter["record"])["number"], letter["error"]) for letter in letters) == Counter(
        (number, "BadOutput" if number % 80 == 47 else "ValueError") for number in range(1200) if bad(number)
    )


class Doubled(pen.BatchProcess):
    output = SCHEMA

    def process(self, batch: pa.RecordBatch, keys: Any, state: Any) -> pa.RecordBatch:
        return refuse_batch(batch)


@pytest.mark.parametrize("process", [Total, Doubled])
def test_dead_letters_can_be_looked_at_in_the_harness(process: Any) -> None:
    """D8, D3: per key and over whole slices."""
    stream = stream_of(SCHEMA).key_by("user").process(process, name="careful", on_error="dead_letter")
    harness = Harness(stream, letters=stream.side("dead_letters"))
    harness.crash()
    emitted = harness.feed([{"user": number % 3, "number": number} for number in range(50)])
    assert sorted(row["number"] for row in emitted) == [number for number in range(50) if not bad(number)]
    assert sorted(json.loads(letter["record"])["number"] for letter in harness.output("letters")) == [7, 47]


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=40), st.sets(st.integers(0, 9), max_size=4))
def test_halving_finds_exactly_the_failing_rows_and_keeps_the_order(numbers: list[int], failing: set[int]) -> None:
    """D8."""

    def run(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        if failing & set(batch["n"].to_pylist()):
            raise ValueError
        return [batch]

    batch = pa.record_batch({"n": pa.array(numbers, pa.int64())})
    outputs, failed = run_passing(batch, run)
    assert [n for output in outputs for n in output["n"].to_pylist()] == [n for n in numbers if n not in failing]
    assert [row for row, _ in failed] == [row for row, n in enumerate(numbers) if n in failing]


def test_the_rows_of_a_slice_are_halved_once_to_find_a_dead_letter() -> None:
    sizes: list[int] = []

    class Fragile(pen.KeyedProcess):
        output = "n bigint"

        def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
            sizes.append(len(rows))
            out.emit_many([{"n": 100 // (row["n"] - 5)} for row in rows])

    schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    stream = stream_of(schema).key_by("k").process(Fragile, on_error="dead_letter")
    harness = Harness(stream, letters=stream.side("dead_letters"))
    assert len(harness.feed([{"k": 1, "n": number} for number in range(8)])) == 7
    assert [json.loads(letter["record"])["n"] for letter in harness.output("letters")] == [5]
    assert sizes == [8, 4, 4, 2, 1, 1, 2]
