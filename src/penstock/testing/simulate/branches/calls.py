"""Asynchronous calls: slow, failing, too slow, abandoned at the barrier; in the end one result for each record."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from penstock.api.outputs import Output
from penstock.api.stream import Stream
from penstock.operators.aggregate import functions as aggregates
from penstock.operators.window.windows import tumbling_window
from penstock.testing.simulate.arrivals import arrivals, last_watermark, micros
from penstock.testing.simulate.branches.base import Branch, Fail, same

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World

S = 1_000_000
WINDOW_S = 4
POISON = 13
"""Ids whose calls fail for good."""
FLAKY = 4
"""Ids whose every other call fails."""


@dataclass(frozen=True, slots=True)
class Calls(Branch):
    """`windows` behind the calls must hold everything, though unordered rows that were put back come late."""

    kind: ClassVar[str] = "calls"
    parts: ClassVar[tuple[str, ...]] = ("done", "failed", "panes")

    ordered: bool = True
    windows: bool = False
    concurrency: int = 3
    latency: float = 0.1
    """In epochs, on average."""

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(
            named=rng.random() < 0.5,
            ordered=rng.random() < 0.5,
            windows=rng.random() < 0.4,
            concurrency=rng.choice((1, 3, 40)),
            latency=rng.choice((0.01, 0.1, 0.4)),
        )

    def outputs(self, world: World, streams: list[Stream]) -> list[Output]:
        made: Counter[int] = Counter()
        latency_s = self.latency * world.epoch_s

        async def call(row: dict[str, Any]) -> dict[str, Any]:
            number = row["id"]
            made[number] += 1
            await asyncio.sleep(latency_s * (1 + number % 3) / 2)
            if number % POISON == 0 or (number % FLAKY == 0 and made[number] % 2):
                raise ValueError(f"call {number}")
            return {**row, "n1": number}

        done = streams[0].map_async(
            call,
            concurrency=self.concurrency,
            timeout=max(1.0, 4 * latency_s),
            retries=2,
            ordered=self.ordered,
            on_error="dead_letter",
            name=self.name("calls"),
        )
        written = [self.write(world, done, "done"), self.write(world, done.side("dead_letters"), "failed")]
        if self.windows:
            window = done.key_by("key").window(tumbling_window(WINDOW_S))
            panes = window.aggregate(n=aggregates.count(), total=aggregates.sum("id"), name=self.name("panes"))
            written.append(self.write(world, panes, "panes"))
        return written

    def check(self, world: World, fail: Fail) -> None:
        came = arrivals(world, 0)
        good = [arrival for arrival in came if arrival.id % POISON]
        same("exactly once", ((a.id, a.id) for a in good), ((r["id"], r["n1"]) for r in self.rows(world, "done")), fail)
        failed = [int(row["message"].split()[1]) for row in self.rows(world, "failed")]
        same("dead letters", (arrival.id for arrival in came if arrival.id % POISON == 0), failed, fail)
        if self.windows:
            ids: dict[tuple[int, int], list[int]] = defaultdict(list)
            for arrival in good:
                ids[arrival.key, arrival.time // (WINDOW_S * S) * WINDOW_S * S].append(arrival.id)
            last = last_watermark(world, 0)
            wanted = [(*pane, len(m), sum(m)) for pane, m in ids.items() if pane[1] + WINDOW_S * S <= last]
            rows = self.rows(world, "panes")
            found = [(row["key"], micros(row["window_start"]), row["n"], row["total"]) for row in rows]
            same("windows", wanted, found, fail)
