"""A watermark for each part of a source, such as a partition of a topic, through the whole engine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import PipelineError
from penstock.testing import Harness, stream_of

SCHEMA = pa.schema({"partition": pa.int32(), "user": pa.int64(), "ts": pa.timestamp("us", "UTC")})
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def windows(**options: Any) -> Harness:
    clicks = stream_of(SCHEMA, "clicks", event_time="ts", **options)
    counts = clicks.key_by("user").window(pen.tumbling_window("1 min")).aggregate(n=pen.count(), name="counts")
    return Harness(counts, late=counts.side("late"))


def click(partition: int, second: int) -> dict[str, Any]:
    return {"partition": partition, "user": 1, "ts": NOON + timedelta(seconds=second)}


def fed_by_a_topic_that_grows(harness: Harness) -> int:
    """Partition 0 has a backlog; partition 1 is new, and its first row is an hour ahead. How many rows are late."""
    for epoch in range(5):
        harness.feed([click(0, 60 * epoch + second) for second in range(0, 60, 10)] + [click(1, 3600 + epoch)])
    return len(harness.output("late"))


def test_a_partition_that_is_ahead_makes_the_backlog_of_another_late_with_one_watermark_for_all() -> None:
    assert fed_by_a_topic_that_grows(windows()) == 24


def test_no_row_is_late_that_is_not_late_in_its_own_partition() -> None:
    assert fed_by_a_topic_that_grows(windows(watermark_by="partition")) == 0


def test_the_watermarks_of_partitions_survive_a_crash() -> None:
    harness = windows(watermark_by="partition")
    harness.feed([click(0, 0), click(1, 3600)])
    harness.crash()
    harness.feed([click(1, 3700)])
    harness.feed([click(0, 10)])
    assert harness.output("late") == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"watermark_by": "shard"}, "shard"),
        ({"watermark_by": "ts"}, "is timestamp"),
        ({"watermark_by": "partition", "event_time": None}, "no event time"),
    ],
)
def test_columns_that_cannot_tell_parts_apart_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        stream_of(SCHEMA, "clicks", **{"event_time": "ts", **options})
