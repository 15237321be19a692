"""Autoscaling: how many subtasks a stage should have, from what its epochs looked like.

More when a backlog stays: in-flight records worth several epochs, in several epochs in a row. Fewer when subtasks were
idle for long, and only so few that they will still have time to spare. The two bands do not touch: what makes a stage
smaller cannot make the smaller stage look overloaded, so constant load never makes it swing. After each change some
epochs are only watched. If more subtasks did not help, no further ones are added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from penstock.protocol.parallelism import Bounds

HOT_EPOCHS = 2.0
"""In-flight records that take longer than this many epochs are a backlog."""
UP_AFTER = 3
"""Epochs in a row with a backlog: a single large micro-batch is none of our business."""
DOWN_AFTER = 30
"""Epochs in a row with idle subtasks. Too many subtasks cost little, too few cost a backlog."""
UNJUDGED = 2
"""Epochs after a change that are not judged: estimates of pace are made anew, files move."""
BUSY_MAX = 0.6
"""A stage is made so small that its subtasks are busy for at most this share of the time."""
WAITING = 0.5
"""Subtasks that compute for less than this share of their work wait for something: they can share cores."""
GAIN_MIN = 1.1
"""More subtasks must make a stage at least this much faster, or there will not be even more."""


@dataclass(frozen=True, slots=True)
class Load:
    """One stage in one epoch; `span_s` is the time since the epoch before, `duration_s` the epoch's own."""

    parallelism: int
    slots: int
    rows_in_flight: int
    bytes_in_flight: int
    rows_processed: int
    stepped_s: float
    duration_s: float
    span_s: float
    computing: float | None = None
    """The share of their work in which subtasks used a core, rather than waiting for something; None: not measured."""

    @property
    def rows_per_s(self) -> float:
        return self.rows_processed / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def backlog_s(self) -> float:
        """How long what is in flight takes at the present rate."""
        if not self.rows_in_flight:
            return 0.0
        return self.rows_in_flight / self.rows_per_s if self.rows_processed else math.inf

    @property
    def at_once(self) -> int:
        """Subtasks that run at the same time."""
        return min(self.parallelism, self.slots)


@dataclass(frozen=True, slots=True)
class ScaleMemory:
    """What is remembered of a stage between epochs. Forgotten at a restart, never needed for correctness."""

    watched: int = 0
    """Epochs since the last change."""
    hot: int = 0
    idle: int = 0
    rows: int = 0
    seconds: float = 0.0
    stepped_s: float = 0.0
    """Sums over the current run of hot or idle epochs."""
    rate_before: float | None = None
    """Rows per second before subtasks were last added."""
    ceiling: int | None = None
    """More subtasks than this did not help."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """What to do: `parallelism` from the next epoch on, and why, where there is something to say."""

    memory: ScaleMemory
    parallelism: int
    why: str | None = None


def rescaling(memory: ScaleMemory, load: Load, bounds: Bounds) -> Scaling:
    """The decision for one stage after one epoch."""
    memory = replace(memory, watched=memory.watched + 1)
    if memory.watched <= UNJUDGED or (load.rows_in_flight and not load.rows_processed):
        return Scaling(_calm(memory), load.parallelism)
    if load.backlog_s > HOT_EPOCHS * load.duration_s:
        memory = _hot(memory, load)
        return _grown(memory, load, bounds) if memory.hot >= UP_AFTER else Scaling(memory, load.parallelism)
    if load.backlog_s <= load.duration_s and load.parallelism > bounds[0]:
        memory = _idle(memory, load)
        return _shrunk(memory, load, bounds) if memory.idle >= DOWN_AFTER else Scaling(memory, load.parallelism)
    return Scaling(_calm(memory), load.parallelism)


def _calm(memory: ScaleMemory) -> ScaleMemory:
    return replace(memory, hot=0, idle=0, rows=0, seconds=0.0, stepped_s=0.0)


def _hot(memory: ScaleMemory, load: Load) -> ScaleMemory:
    before = memory if memory.hot else _calm(memory)
    return replace(
        before, hot=before.hot + 1, rows=before.rows + load.rows_processed, seconds=before.seconds + load.duration_s
    )


def _idle(memory: ScaleMemory, load: Load) -> ScaleMemory:
    before = memory if memory.idle else _calm(memory)
    return replace(
        before,
        idle=before.idle + 1,
        seconds=before.seconds + load.span_s,
        stepped_s=before.stepped_s + load.stepped_s,
    )


def _grown(memory: ScaleMemory, load: Load, bounds: Bounds) -> Scaling:
    count, rate = load.parallelism, memory.rows / memory.seconds
    backlog = f"backlog {load.backlog_s:.0f} s ({_short(load.bytes_in_flight)}B) at {_short(rate)} rows/s"
    if memory.rate_before is not None and rate < GAIN_MIN * memory.rate_before:
        memory = replace(memory, ceiling=count)
    if count >= bounds[1]:
        return Scaling(memory, count, f"stays at {count}: {backlog}, and autoscale ends at {bounds[1]}")
    if memory.ceiling is not None and count >= memory.ceiling:
        cause = _held(load)
        return Scaling(memory, count, f"stays at {count}: {backlog}, but more subtasks did not help: {cause}")
    wanted = min(2 * count, bounds[1])
    return Scaling(ScaleMemory(rate_before=rate), wanted, f"{count}→{wanted}: {backlog}")


def _held(load: Load) -> str:
    if load.computing is None or load.computing > WAITING or load.parallelism <= load.slots:
        return "one key holds the others up, or the cluster has no free slots"
    return (
        f"all {load.slots} slots are taken by subtasks that compute {load.computing:.0%} of their time and wait else; "
        f"give Spark more slots than it has cores"
    )


def _shrunk(memory: ScaleMemory, load: Load, bounds: Bounds) -> Scaling:
    count = load.parallelism
    busy = memory.stepped_s / (memory.seconds * load.at_once) if memory.seconds else 0.0
    enough = math.ceil(load.at_once * busy / BUSY_MAX)
    wanted = max(bounds[0], enough, count // 2)
    if wanted >= count:
        return Scaling(_calm(memory), count)
    return Scaling(ScaleMemory(), wanted, f"{count}→{wanted}: busy {busy:.0%} of the time in {memory.idle} epochs")


def _short(number: float) -> str:
    """Three digits are enough: 950, 30k, 1.2M.

    >>> _short(30_400), _short(1_240_000)
    ('30k', '1.2M')
    """
    for unit in ("", "k", "M", "G"):
        if number < 1000:
            return f"{number:.0f}{unit}" if number >= 10 or not unit else f"{number:.1f}{unit}"
        number /= 1000
    return f"{number:.1f}T"
