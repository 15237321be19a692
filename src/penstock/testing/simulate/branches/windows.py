"""Windows behind a source, with late rows: which ones are late follows from the micro-batch in which they came."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from penstock.api.outputs import Output
from penstock.api.stream import Stream
from penstock.operators.aggregate import functions as aggregates
from penstock.operators.window.windows import session_window, sliding_window, tumbling_window
from penstock.testing.simulate.arrivals import Arrival, arrivals, last_watermark, micros
from penstock.testing.simulate.branches.base import Branch, Fail, Row, same

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World

S = 1_000_000
GAP_S = 3

Pane = tuple[int, int, int]
"""Key, start, end."""


@dataclass(frozen=True, slots=True)
class Windows(Branch):
    """`size` 0 stands for sessions."""

    kind: ClassVar[str] = "windows"
    parts: ClassVar[tuple[str, ...]] = ("panes", "late")
    late: ClassVar[bool] = True

    size: int = 0
    every: int = 0
    lateness: int = 0

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        size, every = rng.choice(((0, 0), (4, 4), (6, 2), (6, 4), (9, 3)))
        lateness = 0 if not size else rng.choice((0, 0, 4))
        return cls(named=rng.random() < 0.5, size=size, every=every, lateness=lateness)

    def outputs(self, world: World, streams: list[Stream]) -> list[Output]:
        if not self.size:
            window = streams[0].key_by("key").window(session_window(GAP_S))
        else:
            kind = (
                tumbling_window(self.size) if self.size == self.every else sliding_window(self.size, every=self.every)
            )
            window = streams[0].key_by("key").window(kind, allowed_lateness=self.lateness)
        panes = window.aggregate(n=aggregates.count(), total=aggregates.sum("id"), name=self.name("panes"))
        return [self.write(world, panes, "panes"), self.write(world, panes.side("late"), "late")]

    def check(self, world: World, fail: Fail) -> None:
        came = arrivals(world, 0)
        late = {arrival.id for arrival in came if self._is_late(arrival)}
        same("late", late, (row["id"] for row in self.rows(world, "late")), fail)
        timely = [arrival for arrival in came if arrival.id not in late]
        last = last_watermark(world, 0)
        wanted = self._sessions(timely, last) if not self.size else self._panes(timely, last)
        found = list(map(_pane, self.rows(world, "panes")))
        if self.lateness:
            found = list(_newest(found, fail))
        same("windows", wanted, found, fail)

    def _is_late(self, arrival: Arrival) -> bool:
        if arrival.watermark is None:
            return False
        if not self.size:
            return arrival.time + GAP_S * S <= arrival.watermark
        return max(self._ends(arrival)) + self.lateness * S <= arrival.watermark

    def _ends(self, arrival: Arrival) -> Iterator[int]:
        """Of all windows that hold the record."""
        start = arrival.time // (self.every * S) * self.every * S
        while start + self.size * S > arrival.time:
            yield start + self.size * S
            start -= self.every * S

    def _panes(self, timely: list[Arrival], last: int) -> Iterator[tuple[Pane, int, int]]:
        ids: dict[Pane, list[int]] = defaultdict(list)
        for arrival in timely:
            for end in self._ends(arrival):
                if arrival.watermark is None or end + self.lateness * S > arrival.watermark:
                    ids[arrival.key, end - self.size * S, end].append(arrival.id)
        yield from ((pane, len(mine), sum(mine)) for pane, mine in ids.items() if pane[2] <= last)

    def _sessions(self, timely: list[Arrival], last: int) -> Iterator[tuple[Pane, int, int]]:
        """A session is over once the watermark has reached its end; a record that comes later begins another one."""
        open_: dict[int, list[list[Arrival]]] = defaultdict(list)
        for arrival in timely:
            sessions = open_[arrival.key]
            if arrival.watermark is not None:
                for mine in [mine for mine in sessions if _end(mine) <= arrival.watermark]:
                    sessions.remove(mine)
                    yield _session(mine)
            joined = [arrival]
            for mine in [mine for mine in sessions if _near(mine, arrival)]:
                sessions.remove(mine)
                joined += mine
            sessions.append(joined)
        yield from (_session(mine) for sessions in open_.values() for mine in sessions if _end(mine) <= last)


def _end(mine: list[Arrival]) -> int:
    return max(arrival.time for arrival in mine) + GAP_S * S


def _near(mine: list[Arrival], arrival: Arrival) -> bool:
    return min(other.time for other in mine) - GAP_S * S <= arrival.time <= _end(mine)


def _session(mine: list[Arrival]) -> tuple[Pane, int, int]:
    start = min(arrival.time for arrival in mine)
    return (mine[0].key, start, _end(mine)), len(mine), sum(arrival.id for arrival in mine)


def _pane(row: Row) -> tuple[Pane, int, int]:
    return (row["key"], micros(row["window_start"]), micros(row["window_end"])), row["n"], row["total"]


def _newest(found: list[tuple[Pane, int, int]], fail: Fail) -> Iterator[tuple[Pane, int, int]]:
    """With allowed lateness a window is emitted again, with more rows each time."""
    newest: dict[Pane, tuple[int, int]] = {}
    for pane, n, total in found:
        if pane in newest and newest[pane][0] >= n:
            fail("windows", f"{pane} goes from {newest[pane][0]} rows to {n}")
        newest[pane] = n, total
    yield from ((pane, n, total) for pane, (n, total) in newest.items())
