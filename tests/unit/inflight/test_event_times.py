"""The largest event times of live rows, of all and by part of the source."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.errors import OperatorFailed
from penstock.inflight import eventtimes
from penstock.inflight.eventtimes import EventTimes

SCHEMA = pa.schema({"topic": pa.string(), "partition": pa.int32(), "ts": pa.timestamp("us", "UTC")})


def batch(*rows: tuple[str | None, int | None, int | None]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True))
    return pa.RecordBatch.from_arrays(
        [pa.array(column, kind) for column, kind in zip(columns, SCHEMA.types, strict=True)], schema=SCHEMA
    )


def test_each_part_has_its_own_largest_event_time() -> None:
    times = EventTimes(SCHEMA, "ts", ["topic", "partition"])
    times.follow(batch(("a", 0, 5), ("a", 1, 9), ("b", 0, 2), ("a", 0, 7), ("a", 1, None)))
    times.follow(batch(("a", 0, 6), ("b", 0, 3)))
    assert times.parts == {"a/0": 7, "a/1": 9, "b/0": 3}
    assert times.newest == 9


def test_rows_without_a_part_are_a_part() -> None:
    times = EventTimes(SCHEMA, "ts", ["partition"])
    times.follow(batch(("a", None, 5), ("a", 1, 9)))
    assert times.parts == {"null": 5, "1": 9}


def test_a_source_without_parts_has_none() -> None:
    times = EventTimes(SCHEMA, "ts")
    times.follow(batch(("a", 0, 5)))
    assert (times.newest, times.parts) == (5, {})


def test_more_parts_than_a_source_can_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eventtimes, "PARTS_MAX", 3)
    times = EventTimes(SCHEMA, "ts", ["partition"])
    with pytest.raises(OperatorFailed, match="more than 3 different values"):
        times.follow(batch(*(("a", number, 1) for number in range(4))))
