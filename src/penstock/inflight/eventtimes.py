"""The largest event times of the rows that come with a stream: of all, and of each part of the source."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import OperatorFailed

PARTS_MAX = 10_000
"""Partitions of all topics of a source. All values are in the manifest, and a column with more of them is a mistake."""


class EventTimes:
    """Follows the rows of one input. Without a column of event times it does nothing."""

    def __init__(self, schema: pa.Schema, event_time: str | None, watermark_by: Sequence[str] = ()) -> None:
        self._column = None if event_time is None else schema.get_field_index(event_time)
        self._by = [schema.get_field_index(name) for name in watermark_by]
        self._names = tuple(watermark_by)
        self.newest: int | None = None
        self.parts: dict[str, int] = {}

    def follow(self, batch: pa.RecordBatch) -> None:
        """Raises: `OperatorFailed` for a source with too many parts."""
        if self._column is None or not batch.num_rows:
            return
        times = batch.column(self._column)
        newest = pc.max(times)
        if newest.is_valid:
            self.newest = _highest(self.newest, _micros(newest))
        if self._by:
            self._follow_parts(batch, times)

    def _follow_parts(self, batch: pa.RecordBatch, times: pa.Array) -> None:
        names = [str(number) for number in range(len(self._by))]
        table = pa.table([*(batch.column(index) for index in self._by), times], names=[*names, "time"])
        newest = table.group_by(names, use_threads=False).aggregate([("time", "max")])
        for *values, time in zip(*(newest.column(name) for name in (*names, "time_max")), strict=True):
            if time.is_valid:
                part = label(values)
                self.parts[part] = _highest(self.parts.get(part), _micros(time))
        if len(self.parts) > PARTS_MAX:
            raise OperatorFailed(
                f"watermark_by={list(self._names)}: more than {PARTS_MAX:,} different values came in one micro-batch",
                cause="each value has a watermark of its own, which is kept in the checkpoint",
                next_step="name the column of the source's partitions, not one of the data",
            )


def label(values: Sequence[pa.Scalar]) -> str:
    """A part by the values of its columns.

    >>> label([pa.scalar("clicks"), pa.scalar(3)])
    'clicks/3'
    """
    return "/".join("null" if not value.is_valid else str(value.as_py()) for value in values)


def _micros(time: pa.Scalar) -> int:
    micros: int = time.cast(pa.timestamp("us", time.type.tz), safe=time.type.unit != "ns").value
    return micros


def _highest(known: int | None, seen: int) -> int:
    return seen if known is None else max(known, seen)
