"""What a chaos run does, from its seed alone: a pipeline, its size, and which faults hit it when."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from tests.chaos.shapes import SHAPES, TIMERS
from tests.spark.matrix_shapes import ROWS

What = Literal[
    "kill workers",
    "kill executor",
    "kill driver",
    "kill starting driver",
    "kill jvm",
    "orphan jvm",
    "pause driver",
    "fill disk",
    "corrupt file",
    "jump clock",
    "burn cpu",
    "cancel jobs",
    "rescale",
    "restart",
]

WEIGHTS: dict[What, int] = {
    "kill workers": 4,
    "kill executor": 6,
    "kill driver": 2,
    "kill starting driver": 1,
    "kill jvm": 1,
    "orphan jvm": 1,
    "pause driver": 3,
    "fill disk": 3,
    "corrupt file": 3,
    "jump clock": 1,
    "burn cpu": 1,
    "cancel jobs": 1,
    "rescale": 1,
    "restart": 1,
}
ENDS_DRIVER: frozenset[What] = frozenset({"kill driver", "kill starting driver", "kill jvm", "orphan jvm"})
CLUSTER_SHARE = 0.12
"""Of runs on a cluster with executors of their own: three JVMs more than others need."""
LARGE_ROWS = 25
"""Of records of a megabyte each, that come together."""
DRIVER_ENDS_MAX = 2
"""Per run: each needs a JVM, the dearest thing in a run."""


@dataclass(frozen=True, slots=True)
class Act:
    """A fault, some epochs and a moment after more input came. `roll` seeds what else there is to choose."""

    what: What
    epochs: int
    delay_s: float
    roll: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """One run."""

    seed: int
    shape: str
    cluster: bool
    parallelism: int
    epoch_s: float
    cost_s: float
    rows: int
    """That come together, from all sources: before each act, and after the last."""
    small: Literal["checkpoint", "lake"] | None
    """What lies on a disk of its own, to be filled."""
    acts: tuple[Act, ...]

    def __str__(self) -> str:
        return (
            f"{self.shape}{' on a cluster' if self.cluster else ''}, {self.parallelism} subtasks, "
            f"epochs of {self.epoch_s * 1000:.0f} ms, {self.rows} rows a file at {self.cost_s * 1000:g} ms"
        )


def schedule(seed: int) -> Schedule:
    """The run of a seed."""
    chance = random.Random(f"chaos {seed}")
    cluster = chance.random() < CLUSTER_SHARE
    acts = _acts(chance, chance.randint(2, 4), cluster=cluster)
    # Clock jumps matter where results wait for processing time.
    jumps = any(act.what == "jump clock" for act in acts)
    shape = TIMERS if jumps and chance.random() < 0.7 else chance.choice(list(SHAPES))
    return Schedule(
        seed=seed,
        shape=shape,
        cluster=cluster,
        parallelism=chance.randint(1, 7),
        epoch_s=chance.choice((0.15, 0.3, 0.6)),
        cost_s=chance.choice((0.0003, 0.001)),
        rows=chance.randint(60, 200) if SHAPES[shape].rows == ROWS else LARGE_ROWS,
        small=chance.choice(("checkpoint", "lake")) if any(act.what == "fill disk" for act in acts) else None,
        acts=acts,
    )


def _acts(chance: random.Random, count: int, *, cluster: bool) -> tuple[Act, ...]:
    acts: list[Act] = []
    while len(acts) < count:
        weights = {what: weight for what, weight in WEIGHTS.items() if _allowed(what, acts, cluster=cluster)}
        (what,) = chance.choices(list(weights), list(weights.values()))
        acts.append(Act(what, chance.randint(1, 3), chance.uniform(0.0, 0.4), chance.randrange(1 << 30)))
    return tuple(acts)


def _allowed(what: What, before: list[Act], *, cluster: bool) -> bool:
    """Executors exist on a cluster only, and a cluster is too dear to be killed."""
    if what == "kill executor":
        return cluster
    if what in ENDS_DRIVER:
        return not cluster and sum(act.what in ENDS_DRIVER for act in before) < DRIVER_ENDS_MAX
    once = {"fill disk", "burn cpu", "pause driver"}
    return what not in once or what not in {act.what for act in before}
