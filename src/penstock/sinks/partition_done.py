"""Tells when a partition is done: no more rows are expected, so readers may begin.

Partitions that got rows wait in the listener's state. A partition is done when the sink's watermark has passed its end,
or when it got no rows for a while. If rows come later, it waits again and is marked again.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import unquote

import msgspec

from penstock.errors import ConfigError
from penstock.units import parse_duration

_FORMATS = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d", "%Y%m%d", "%Y%m%d%H")


@dataclass(frozen=True, slots=True)
class PartitionDone:
    """Marks partitions with a file ``_SUCCESS`` in their folder, as Apache Paimon does.

    `by="watermark"`: when the watermark is `delay` past the partition's end, which is its time plus `interval`. The
    time is read from the partition columns, in UTC: `pattern` puts them together (default: the first one alone),
    `time_format` reads the result (``strptime``; default: the usual ISO forms).
    `by="idle"`: when a partition got no rows for `delay`, by the driver's clock.

    >>> PartitionDone(by="watermark", interval="1 h", delay="10 min", pattern="$day $hour:00").delay_ms
    600000
    """

    by: Literal["watermark", "idle"] = "watermark"
    _: KW_ONLY
    delay: object = "0 s"
    interval: object = "1 d"
    pattern: str | None = None
    time_format: str | None = None

    def __post_init__(self) -> None:
        if self.by not in {"watermark", "idle"}:
            raise ConfigError(
                f"partition_done by={self.by!r}",
                cause="partitions are done by watermark or by idle time",
                next_step='use by="watermark" or by="idle"',
            )
        parse_duration(self.delay, "delay")
        parse_duration(self.interval, "interval")

    @property
    def delay_ms(self) -> int:
        return round(parse_duration(self.delay, "delay") * 1000)

    @property
    def interval_ms(self) -> int:
        return round(parse_duration(self.interval, "interval") * 1000)

    def end_ms(self, partition: str) -> int | None:
        """When a partition's time is over; None when its name holds no time.

        >>> PartitionDone().end_ms("day=1970-01-02")
        172800000
        """
        values = {key: unquote(value) for key, _, value in (part.partition("=") for part in partition.split("/"))}
        text = self.pattern if self.pattern is not None else next(iter(values.values()))
        # Longer names first: $day must not be found in $daytime.
        for key in sorted(values, key=len, reverse=True):
            text = text.replace(f"${key}", values[key])
        for form in (self.time_format,) if self.time_format is not None else _FORMATS:
            try:
                begin = datetime.strptime(text, form).replace(tzinfo=UTC)
            except ValueError:
                continue
            return round(begin.timestamp() * 1000) + self.interval_ms
        return None

    def is_due(self, partition: str, touched_ms: int, *, watermark: int | None, now_ms: int) -> bool:
        """Whether a partition that last got rows at `touched_ms` is done."""
        if self.by == "idle":
            return now_ms - touched_ms >= self.delay_ms
        end_ms = self.end_ms(partition)
        return watermark is not None and end_ms is not None and watermark >= end_ms + self.delay_ms


class Waiting(msgspec.Struct, frozen=True):
    """The listener's state: partitions that wait, with the time of their last rows, and news for the next snapshot."""

    touched_ms: dict[str, int] = {}
    announce: tuple[str, ...] = ()


def decode_waiting(state: bytes) -> Waiting:
    return msgspec.json.decode(state, type=Waiting) if state else Waiting()


def touched(waiting: Waiting, partitions: tuple[str, ...], at_ms: int) -> Waiting:
    """After a commit its partitions wait (again). The news are in its snapshot, so they are dropped."""
    return Waiting({**waiting.touched_ms, **dict.fromkeys(partitions, at_ms)}, ())


def due(waiting: Waiting, rule: PartitionDone, *, watermark: int | None, now_ms: int) -> tuple[str, ...]:
    """Partitions to mark now, in order."""
    return tuple(
        partition
        for partition, at_ms in sorted(waiting.touched_ms.items())
        if rule.is_due(partition, at_ms, watermark=watermark, now_ms=now_ms)
    )


def marked(waiting: Waiting, partitions: tuple[str, ...]) -> Waiting:
    """After partitions were marked."""
    left = {partition: at_ms for partition, at_ms in waiting.touched_ms.items() if partition not in partitions}
    return Waiting(left, tuple(dict.fromkeys((*waiting.announce, *partitions))))
