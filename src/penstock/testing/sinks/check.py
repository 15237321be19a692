"""`check_sink`: checks that a sink keeps the promises the engine relies on, one by one, then in worlds of drivers."""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock.sinks.base import Sink
from penstock.testing.sinks.promises import PROMISES, Promise
from penstock.testing.sinks.scene import Broken, MakeRows, MakeSink, ReadRows, Scene, Untold
from penstock.testing.sinks.world import World, plain_rows

WORLDS = "Drivers that crash, hang and race commit each published row once"
_ACTIONS = 40
_EVENTS_SHOWN = 30


@dataclass(frozen=True, slots=True)
class BrokenPromise:
    """One promise that a sink does not keep, and what was seen."""

    promise: str
    seen: str


class SinkBroken(AssertionError):
    """A sink breaks promises: `broken` has them."""

    def __init__(self, description: str, broken: tuple[BrokenPromise, ...]) -> None:
        lines = [f"{one.promise}.\n    {one.seen}" for one in broken]
        super().__init__(f"{description} breaks {len(broken)} promises:\n- " + "\n- ".join(lines))
        self.broken = broken


@dataclass(frozen=True, slots=True)
class SinkReport:
    """What `check_sink` found: promises that hold, those that the sink cannot be asked with the reason, and worlds."""

    kept: tuple[str, ...]
    untold: Mapping[str, str] = field(default_factory=dict)
    worlds: int = 0


def check_sink(
    make_sink: MakeSink,
    read: ReadRows | None = None,
    *,
    rows: MakeRows | None = None,
    worlds: int = 20,
    seed: int = 0,
) -> SinkReport:
    """Runs a sink through crashes, lost answers, replays, missing files and rival drivers, without Spark.

    `make_sink` gets an empty folder and gives a sink into a table that does not exist yet; a sink of something that is
    no folder may ignore it. `read` gives the rows of the table as readers see them, with the column `id`. Without it
    only answers are checked, not rows. `rows` makes a batch with the given values in `id`; it may add columns.

    Promises come first, each on a table of its own. Then come `worlds`, the first with `seed`: in each, two sinks take
    the commits of drivers that crash, fail, are paused and replaced at every step.

    Raises: `SinkBroken`, which names each broken promise and what was seen.
    """
    rows = rows or plain_rows
    kept, untold, broken = [], {}, []
    with tempfile.TemporaryDirectory() as folder, _quiet():
        root = Path(folder)
        for number, (name, promise) in enumerate(PROMISES.items()):
            try:
                _ask(promise, make_sink, read, rows, root / f"promise-{number}")
                kept.append(name)
            except Untold as reason:
                untold[name] = str(reason)
            except Broken as found:
                broken.append(BrokenPromise(name, str(found)))
            except Exception as error:
                broken.append(BrokenPromise(name, f"{type(error).__name__}: {error}"))
        description = make_sink(_made(root / "described")).description
        if broken:
            raise SinkBroken(description, tuple(broken))
        for number in range(seed, seed + worlds):
            seen = _run_world(number, make_sink, read, rows, root / f"world-{number}")
            if seen is not None:
                raise SinkBroken(description, (BrokenPromise(WORLDS, seen),))
    return SinkReport((*kept, WORLDS) if worlds else tuple(kept), untold, worlds)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _ask(promise: Promise, make_sink: MakeSink, read: ReadRows | None, rows: MakeRows, folder: Path) -> None:
    sink = make_sink(_made(folder))
    sink.check(rows(()).schema)
    promise(Scene(sink, folder, read, rows))


def _run_world(seed: int, make_sink: MakeSink, read: ReadRows | None, rows: MakeRows, folder: Path) -> str | None:
    """What went wrong in one world, with what led to it; None when nothing did."""
    sinks = {name: make_sink(_made(folder / name)) for name in ("a", "bb")}
    for sink in sinks.values():
        sink.check(rows(()).schema)
    world = World(seed, sinks, rows=rows, probe=True)

    def ids_in(sink: Sink) -> Counter[int]:
        assert read is not None
        return Counter(read(sink)["id"].to_pylist())

    try:
        world.run(_ACTIONS)
        if read is not None and any(state.committed is not None for state in world.states().values()):
            world.check(ids_in)
    except Exception as error:
        events = "\n      ".join(world.events[-_EVENTS_SHOWN:])
        return f"seed {seed}: {type(error).__name__}: {error}\n    after:\n      {events}"
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    """The engine warns of every fault that the kit makes."""
    logger = logging.getLogger("penstock")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
