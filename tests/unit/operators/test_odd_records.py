"""Records that Python cannot hold, and exceptions that cannot be written down, fail as all others do (D8)."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import pyarrow as pa
import pytest

import penstock as pen
from penstock.display import record_of, shown, whole_record
from penstock.errors import OperatorFailed
from penstock.operators.failures.deadletters import sample_of
from penstock.testing import Harness, stream_of

MOMENT = pa.timestamp("us", "UTC")
TIMES = pa.schema([("k", pa.int64()), ("ts", MOMENT)])
FAR = 1_767_225_600_000 * 10**6
"""Somebody took milliseconds for seconds."""
ROWS = pa.table({"k": [1, 2, 3], "ts": pa.array([0, FAR, 0], MOMENT)}, schema=TIMES)


class Keyed(pen.KeyedProcess):
    """Hands keys on."""

    output = "k bigint"

    def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
        out.emit_many([key] * len(rows))


async def key_alone(row: dict[str, Any]) -> dict[str, Any]:
    return {"k": row["k"]}


def flat_map(**options: Any) -> pen.Stream:
    return stream_of(TIMES).flat_map(lambda row: [{"k": row["k"]}], "k bigint", **options)


def map_async(**options: Any) -> pen.Stream:
    return stream_of(TIMES).map_async(key_alone, "k bigint", **options)


def process(**options: Any) -> pen.Stream:
    return stream_of(TIMES).key_by("k").process(Keyed, **options)


def refuse_two(batch: pa.RecordBatch) -> pa.RecordBatch:
    if 2 in batch["k"].to_pylist():
        raise ValueError("two")
    return batch.select(["k"])


def map_batches(**options: Any) -> pen.Stream:
    return stream_of(TIMES).map_batches(refuse_two, "k bigint", **options)


@pytest.mark.parametrize("build", [flat_map, map_async, process, map_batches])
def test_a_record_that_python_cannot_hold_is_a_dead_letter_like_any_other(build: Any) -> None:
    stream = build(on_error="dead_letter")
    harness = Harness(stream, letters=stream.side("dead_letters"))
    assert sorted(row["k"] for row in harness.feed(ROWS)) == [1, 3]
    (letter,) = harness.output("letters")
    assert json.loads(letter["record"]) == {"k": 2, "ts": f"{FAR} (timestamp[us, tz=UTC])"}


@pytest.mark.parametrize("build", [flat_map, map_async, process, map_batches])
def test_a_record_that_python_cannot_hold_is_named_when_it_stops_the_query(build: Any) -> None:
    with pytest.raises(OperatorFailed) as caught:
        Harness(build()).feed(ROWS)
    assert str(FAR) in caught.value.fields["record"]


class Mute(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(("error", "message"), [(ValueError("bad \ud83d"), r"bad \ud83d"), (Mute(), "cannot be read")])
def test_an_exception_with_any_text_is_a_dead_letter_or_stops_the_query(error: Exception, message: str) -> None:
    def fail(row: dict[str, Any]) -> NoReturn:
        raise error

    stream = stream_of(TIMES).flat_map(fail, on_error="dead_letter")
    harness = Harness(stream, letters=stream.side("dead_letters"))
    harness.feed([{"k": 1, "ts": 0}])
    (letter,) = harness.output("letters")
    assert letter["error"] == type(error).__name__
    assert message in letter["message"]
    with pytest.raises(OperatorFailed) as caught:
        Harness(stream_of(TIMES).flat_map(fail)).feed([{"k": 1, "ts": 0}])
    assert message in caught.value.seen
    caught.value.seen.encode()


def test_a_value_without_a_text_is_shown_by_its_type() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shown(Silent()) == "a Silent"


def test_numbers_that_json_does_not_know_are_strings_in_records() -> None:
    kind = pa.struct([("l", pa.list_(pa.float64()))])
    batch = pa.record_batch({"f": [float("nan")], "s": pa.array([{"l": [float("inf"), -float("inf"), 1.5]}], kind)})
    wanted = {"f": "NaN", "s": {"l": ["Infinity", "-Infinity", 1.5]}}
    for text in (whole_record(batch, 0), record_of(batch, 0)):
        assert json.loads(text, parse_constant=pytest.fail) == wanted


def test_far_moments_deep_inside_a_record_are_numbers_in_a_text() -> None:
    kind = pa.list_(pa.struct([("ts", MOMENT)]))
    batch = pa.record_batch({"l": pa.array([[{"ts": FAR}]], kind)})
    assert json.loads(whole_record(batch, 0)) == {"l": [{"ts": f"{FAR} (timestamp[us, tz=UTC])"}]}


def test_a_sample_of_dead_letters_does_not_need_their_event_time() -> None:
    letters = pa.record_batch(
        {"error": ["E"], "message": ["m"], "record": ["{}"], "event_time": pa.array([FAR], MOMENT)}
    )
    assert sample_of(letters) == "E: m, record {}"


@pytest.mark.parametrize(("kind", "given"), [("timestamp", FAR), ("date", 10**7)])
def test_state_that_could_not_be_read_again_is_refused(kind: str, given: int) -> None:
    class Far(pen.KeyedProcess):
        output = "k bigint"
        kept = pen.value_state(kind)

        def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
            state.kept = given

    with pytest.raises(OperatorFailed, match="the state 'kept' is declared as"):
        Harness(stream_of(TIMES).key_by("k").process(Far)).feed([{"k": 1, "ts": 0}])
