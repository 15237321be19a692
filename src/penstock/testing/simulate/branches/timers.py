"""Timers of user code, in event time and in processing time: set, moved, cancelled, and fired once."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa

from penstock.api.outputs import Output
from penstock.api.stream import Stream
from penstock.operators.process.declare import map_state, value_state
from penstock.operators.process.process import KeyedProcess
from penstock.testing.simulate.arrivals import Arrival, arrivals, last_watermark, micros
from penstock.testing.simulate.branches.base import Branch, Fail, same

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World

S = 1_000_000
NEVER = 1 << 60
NAMES = 3
"""Names are used again, so that timers are moved, always to later."""
CANCELS = 11
"""Records whose id this divides cancel the timer of their name for good: what comes out is then the same whatever the
order of records within a micro-batch."""
FIRED = pa.schema({"key": pa.int64(), "name": pa.string(), "time": pa.int64(), "seen": pa.int64()})


@dataclass(frozen=True, slots=True)
class EventTimers(Branch):
    """Each record sets a timer in event time, one of a few names: `after_s` behind the record."""

    kind: ClassVar[str] = "timers"
    parts: ClassVar[tuple[str, ...]] = ("fired",)

    after_s: int = 2
    cost: float = 0.0

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(named=rng.random() < 0.5, after_s=rng.choice((1, 7, 20)), cost=rng.choice((0.0, 0.05, 0.2)))

    def outputs(self, world: World, streams: list[Stream]) -> list[Output]:
        fired = streams[0].key_by("key").process(self._process(world), name=self.name("process"))
        return [self.write(world, fired, "fired")]

    def _process(self, world: World) -> KeyedProcess:
        after, cost_s = self.after_s * S, self.cost * world.epoch_s

        class Setting(KeyedProcess):
            output = FIRED
            seen = value_state(pa.int64())
            times = map_state(pa.string(), pa.int64())

            def process(self, key: Any, rows: list[dict[str, Any]], state: Any, out: Any, timers: Any) -> None:
                del key, out
                world.scheduler.spend(len(rows) * cost_s)
                state.seen = (state.seen or 0) + len(rows)
                for row in rows:
                    name, time = str(row["id"] % NAMES), micros(row["ts"]) + after
                    if row["id"] % CANCELS == 0:
                        timers.cancel(name)
                        state.times[name] = NEVER
                    elif state.times.get(name, -NEVER) < time:
                        timers.at(time, name)
                        state.times[name] = time

            def on_timer(self, key: Any, time: Any, state: Any, out: Any, timers: Any) -> None:
                world.scheduler.spend(cost_s)
                if state.times.pop(timers.name) != micros(time):
                    world.scheduler.fail(f"timers: {timers.name} of {key} fires at {time}, which it was not set to")
                out.emit(key=key["key"], name=timers.name, time=micros(time), seen=state.seen)

        return Setting()

    def check(self, world: World, fail: Fail) -> None:
        by_key: dict[int, list[Arrival]] = defaultdict(list)
        for arrival in arrivals(world, 0):
            by_key[arrival.key].append(arrival)
        last = last_watermark(world, 0)
        wanted = [(key, *one) for key, mine in by_key.items() for one in self._fired(mine, last)]
        found = [(row["key"], row["name"], row["time"], row["seen"]) for row in self.rows(world, "fired")]
        same("timers", wanted, found, fail)

    def _fired(self, mine: list[Arrival], last: int) -> Iterator[tuple[str, int, int]]:
        """Name, moment, and how many records of the key had been there: those before the micro-batch whose watermark
        made it due."""
        timers: dict[str, int] = {}
        for seen, arrival in enumerate(mine):
            if arrival.watermark is not None:
                yield from _due(timers, arrival.watermark, seen)
            name = str(arrival.id % NAMES)
            wanted = arrival.time + self.after_s * S if arrival.id % CANCELS else NEVER
            timers[name] = max(timers.get(name, wanted), wanted)
        yield from _due(timers, last, len(mine))


def _due(timers: dict[str, int], watermark: int, seen: int) -> Iterator[tuple[str, int, int]]:
    for name in [name for name, time in timers.items() if time <= watermark]:
        yield name, timers.pop(name), seen


SET = pa.schema({"key": pa.int64(), "id": pa.int64(), "due": pa.int64()})


@dataclass(frozen=True, slots=True)
class ProcessingTimers(Branch):
    """Each record sets a timer of its own in processing time, and so does the first that fires of each."""

    kind: ClassVar[str] = "waiting"
    parts: ClassVar[tuple[str, ...]] = ("fired", "set")

    after: float = 1.0
    """In epochs."""

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(named=rng.random() < 0.5, after=rng.choice((0.0, 0.5, 3.0)))

    def outputs(self, world: World, streams: list[Stream]) -> list[Output]:
        after_s = self.after * world.epoch_s

        class Waiting(KeyedProcess):
            output = SET
            sides: ClassVar[dict[str, Any]] = {"set": SET}
            due = map_state(pa.int64(), pa.int64())

            def process(self, key: Any, rows: list[dict[str, Any]], state: Any, out: Any, timers: Any) -> None:
                for row in rows:
                    due = micros(timers.now) + round(after_s * 1e6)
                    timers.after(after_s, str(row["id"]))
                    state.due[row["id"]] = due
                    out.side("set").emit(key=key["key"], id=row["id"], due=due)

            def on_timer(self, key: Any, time: Any, state: Any, out: Any, timers: Any) -> None:
                number = int(timers.name)
                if micros(time) != state.due[number] or micros(timers.now) < state.due[number]:
                    world.scheduler.fail(f"timers: {number}, due {state.due[number]}, fires at {time}, {timers.now}")
                out.emit(key=key["key"], id=number, due=state.due.pop(number))

        fired = streams[0].key_by("key").process(Waiting(), name=self.name("process"))
        return [self.write(world, fired, "fired"), self.write(world, fired.side("set"), "set")]

    def check(self, world: World, fail: Fail) -> None:
        """Whatever was due at the last checkpoint has fired, and nothing fired twice."""
        was_set = {row["id"]: row["due"] for row in self.rows(world, "set")}
        same(
            "exactly once",
            (arrival.id for arrival in arrivals(world, 0)),
            (row["id"] for row in self.rows(world, "set")),
            fail,
        )
        fired = {row["id"]: row["due"] for row in self.rows(world, "fired")}
        if len(fired) != len(self.rows(world, "fired")):
            fail("timers", f"{len(self.rows(world, 'fired'))} fired of {len(fired)}")
        if any(was_set[number] != due for number, due in fired.items()):
            fail("timers", "fired at another moment than set")
        now = world.checks.newest().now
        forgotten = [number for number, due in was_set.items() if due <= now and number not in fired]
        if forgotten:
            fail("timers", f"{forgotten[:5]} were due at {now} and did not fire")
