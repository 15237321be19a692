"""``python -m benchmarks.scale``: what the driver does in an epoch, by the number of subtasks. Needs no Spark.

A real driver runs epochs over models of subtasks (`penstock.testing.simulate.crowd`). Each subtask has two segments in
flight and four files of state, and reads, spills, writes state and commits in every epoch. Only the driver is timed,
by its CPU time: not the models, not the table.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from benchmarks.verdict import Verdicts
from penstock.engine import checkpoints, epochs, history
from penstock.protocol.keygroups import range_of
from penstock.testing.simulate.crowd.driver import SINK, CrowdDriver
from penstock.testing.simulate.crowd.world import Crowd
from penstock.testing.simulate.runner import quiet

COUNTS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 10240)
MAX_PARALLELISM = 1 << 15
WARMUP, MEASURED = 7, 5
"""Four epochs until each subtask has four files of state, and some more until nothing grows."""
GROWTH_MAX = 2.3
MARKS_S = {1024: 0.06, 10240: 0.6}
PARTS = ("plan", "tasks", "absorb", "publish", "event", "collect", "commit", "rest")


class Laps:
    """Seconds of each part, without the time that passes outside of the driver."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = defaultdict(float)
        self.outside_s = 0.0

    @contextmanager
    def outside(self) -> Iterator[None]:
        started = time.thread_time()
        yield
        self.outside_s += time.thread_time() - started

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        started, outside_s = time.thread_time(), self.outside_s
        yield
        self.parts[part] += time.thread_time() - started - (self.outside_s - outside_s)

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def measured(*args: Any, **named: Any) -> Any:
            with self.of(part):
                return function(*args, **named)

        return measured


class SteadyCrowd(Crowd):
    """Two records for each subtask in each micro-batch. Subtasks are one and a half micro-batches behind."""

    def __init__(self, subtasks: int, laps: Laps) -> None:
        super().__init__(
            0,
            subtasks,
            MAX_PARALLELISM,
            1,
            faulty=False,
            rows_max=lambda: min(2, self.epoch_number),
            outside=laps.outside,
        )
        self.epoch_number = -1

    def next_epoch(self, driver: CrowdDriver) -> None:
        self.epoch_number += 1
        self.offer(driver)

    def chosen(self) -> npt.NDArray[np.int32]:
        first = [range_of(subtask, self.subtasks, MAX_PARALLELISM).lo for subtask in range(self.subtasks)]
        return np.array([group + k for group in first for k in (0, 1)], np.int32)


def measure(subtasks: int) -> tuple[dict[str, float], int, int]:
    """Median seconds of each part of an epoch; the largest plan that a task gets; the bytes of a manifest."""
    laps = Laps()
    crowd = SteadyCrowd(subtasks, laps)
    seen: list[dict[str, float]] = []
    with ExitStack() as stack:
        for place, name, part in (
            (epochs, "plan_subtasks", "plan"),
            (epochs, "absorb", "absorb"),
            (checkpoints, "encode_manifest", "publish"),
            (history.History, "record", "event"),
        ):
            stack.enter_context(patch.object(place, name, laps.timed(part, getattr(place, name))))
        driver = crowd.start()
        assert crowd.cluster is not None
        cluster = crowd.cluster
        stack.enter_context(patch.object(type(cluster), "run", laps.timed("tasks", type(cluster).run)))
        for number in range(WARMUP + MEASURED):
            laps.parts.clear()
            crowd.next_epoch(driver)
            with laps.of("loop"):
                driver.step("epochs")
            for _ in range(3):
                with laps.of("commit"):
                    driver.step(f"commit-{SINK}")
            with laps.of("collect"):
                driver.step("collector")
            parts = dict(laps.parts)
            inner = sum(parts[name] for name in ("plan", "tasks", "absorb", "publish", "event"))
            parts["rest"] = parts.pop("loop") - inner
            if number >= WARMUP:
                seen.append(parts)
    manifest = driver.supervisor.runner.manifest
    assert manifest.segments_in_flight == 2 * subtasks, manifest.segments_in_flight
    last = driver.supervisor.history.last_epoch
    assert last is not None
    medians = {part: statistics.median(parts.get(part, 0.0) for parts in seen) for part in PARTS}
    return medians, max(cluster.plan_bytes), last.bytes_written.manifest


def main(counts: list[int]) -> int:
    quiet()
    verdicts = Verdicts()
    titles = "".join(f"{part:>9}" for part in PARTS)
    print(f"milliseconds per epoch\n{'subtasks':>9}{titles}{'driver':>9}{'×':>6}{'plan B':>9}{'manifest B':>12}")
    known: dict[int, float] = {}
    growth = []
    for count in counts:
        gc.collect()
        parts, plan_bytes, manifest_bytes = measure(count)
        known[count] = total = sum(parts.values())
        ratio = total / known[count // 2] if count // 2 in known else None
        figures = "".join(f"{1000 * parts[part]:>9.1f}" for part in PARTS)
        times = "" if ratio is None else f"{ratio:.2f}"
        print(
            f"{count:>9}{figures}{1000 * total:>9.1f}{times:>6}{plan_bytes:>9}{manifest_bytes:>12}",
            flush=True,
        )
        if ratio is not None:
            growth.append(ratio)
    for count, limit_s in MARKS_S.items():
        if count in known:
            verdicts.at_most(f"driver with {count} subtasks", 1000 * known[count], 1000 * limit_s, " ms")
    if growth:
        verdicts.at_most("growth per doubling, the largest", max(growth), GROWTH_MAX)
    return 0 if verdicts.ok else 1


if __name__ == "__main__":
    sys.exit(main([int(count) for count in sys.argv[1:]] or list(COUNTS)))
