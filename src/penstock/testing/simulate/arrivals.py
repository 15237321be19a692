"""When each record came: its micro-batch, its partition, and the watermark of its source at that moment.

Worked out from the source's log alone, for expectations that depend on it: what is late, when a timer fires.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World

Row = dict[str, Any]
DISORDER_S = 5
"""Rows come at most so much out of order, unless they are meant to be late."""
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - as the column is
_MICROSECOND = timedelta(microseconds=1)


def micros(moment: datetime) -> int:
    return (moment.replace(tzinfo=None) - _EPOCH) // _MICROSECOND


@dataclass(frozen=True, slots=True)
class Arrival:
    """One record; `watermark` is its source's when it came, None before the first."""

    row: Row
    source: int
    batch: int
    partition: int
    watermark: int | None

    @property
    def key(self) -> int:
        key: int = self.row["key"]
        return key

    @property
    def id(self) -> int:
        number: int = self.row["id"]
        return number

    @property
    def time(self) -> int:
        return micros(self.row["ts"])


def arrivals(world: World, source: int) -> list[Arrival]:
    """All records of a source, in its order; for a world that has read everything."""
    rows = world.records.tables[source].to_pylist()
    found: list[Arrival] = []
    newest: int | None = None
    for batch in sorted(world.source.offsets):
        lo, hi = world.source.offsets[batch][source]
        watermark = None if newest is None else newest - DISORDER_S * 1_000_000
        partitions = world.source.partitions(batch, source)
        came = [
            Arrival(row, source, batch, partition, watermark)
            for row, partition in zip(rows[lo:hi], partitions, strict=True)
        ]
        found += came
        newest = (
            max((arrival.time for arrival in came), default=newest)
            if newest is None
            else max([newest, *(arrival.time for arrival in came)])
        )
    if len(found) != len(rows):
        world.scheduler.fail(f"source: {len(found)} of {len(rows)} records of s{source} are in micro-batches")
    return found


def last_watermark(world: World, *sources: int) -> int:
    """The lowest of these sources once all was read."""
    return min(
        max(micros(moment) for moment in world.records.tables[source].column("ts").to_pylist()) - DISORDER_S * 1_000_000
        for source in sources
    )
