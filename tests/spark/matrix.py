"""The rescale matrix on real Spark: every shape with its pairs of parallelism.

Each case has three phases: run at the old parallelism and fail; restore at the new one, checkpoint, stop; restore at a
random one, fail once more, rescale the running query, run to the end. Then the tables are read back and compared with
the input. Records must be in flight at each restore and at the live rescale: a case without is void, and fails.

    python -m tests.spark.matrix [--only SHAPE] [--seed N] [--runs N]
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession

import penstock as pen
from penstock.observe.events import EpochPublished, Event
from tests.spark.matrix_data import Faults, batches_of_files
from tests.spark.matrix_shapes import SHAPES, SLOW_ROW_COST_S, WORK_S, Shape, set_cost
from tests.support.spark_streams import take_jobs_away

TIMEOUT_S = 600
"""A query that takes longer hangs; hunts run many at once on busy processors."""
EPOCH = "150 ms"


@dataclass(frozen=True, slots=True)
class Case:
    """One shape, from one parallelism to another."""

    shape: str
    old: int
    new: int
    slow: bool = False
    seed: int = 0
    rows: int | None = None
    """In all sources together; None: as the shape has it."""

    def __str__(self) -> str:
        return f"{self.shape} {self.old}→{self.new}{' slow' if self.slow else ''} (seed {self.seed})"


UP = ((1, 2), (2, 3), (3, 7), (4, 8), (20, 21))
PAIRS: dict[str, tuple[tuple[int, int], ...]] = {
    "pipeline": (*UP, *((new, old) for old, new in UP), (1, 1), (3, 3), (7, 7), (20, 20)),
    "multi_input": (*UP[:3], *((new, old) for old, new in UP[:3]), (1, 1), (7, 7)),
    "union": (*UP[:3], *((new, old) for old, new in UP[:3]), (1, 1), (7, 7)),
    "keyed_stages": ((12, 7), (7, 12)),
    "slow_first": ((2, 5), (5, 2)),
    "keyed_broadcast": ((7, 2), (2, 7)),
    "broadcast": ((5, 2), (2, 5)),
}
SLOW_PAIRS = ((3, 5), (5, 3))
RANDOM_SHAPES = {
    "two_edges": 10,
    "half_empty_union": 10,
    "several_outputs": 10,
    "large_records": 8,
    "join": 7,
    "hold_back": 7,
    "self_union": 7,
    "diamond": 7,
    "large_union": 5,
}
RANDOM_RUNS = 3


def cases(seed: int) -> Iterator[Case]:
    for shape, pairs in PAIRS.items():
        for old, new in pairs:
            yield Case(shape, old, new, seed=seed)
        for old, new in SLOW_PAIRS:
            yield Case(shape, old, new, slow=True, seed=seed)
    for shape, highest in RANDOM_SHAPES.items():
        for run in range(RANDOM_RUNS):
            chance = random.Random(f"{shape} {run} {seed}")
            yield Case(shape, chance.randint(1, highest), chance.randint(1, highest), seed=seed + run)


def representative(seed: int) -> list[Case]:
    """A part of the matrix: every shape at least once, growing, shrinking and slow."""
    picked = [case for number, case in enumerate(cases(seed)) if number % 8 == 0]
    missing = set(SHAPES) - {case.shape for case in picked}
    return [*picked, *(next(case for case in cases(seed) if case.shape == shape) for shape in sorted(missing))]


@dataclass(slots=True)
class Outcome:
    """What a case found, and what it went through."""

    faults: Faults
    checkpoints: int
    in_flight: tuple[int, ...]
    """Rows in flight at each restore, then at the live rescale."""
    held: int
    """Checkpoints of the last phase that had rows in flight."""
    joined: int
    """Files that Spark put into a micro-batch with another one, after a failure."""
    seconds: float


class Run:
    """One case on one Spark session, in a folder of its own."""

    def __init__(self, spark: SparkSession, case: Case, folder: Path) -> None:
        self._spark, self._case, self._folder = spark, case, folder
        self._chance = random.Random(f"{case}")
        self._shape: Shape = SHAPES[case.shape]
        self._input = self._shape.input(case.seed, case.rows, slow=case.slow)
        self._checkpoints = 0

    def __call__(self) -> Outcome:
        started = time.monotonic()
        self._input.write(self._folder / "in")
        highest = max(self._case.old, self._case.new, 3)
        self._phase(self._case.old, end="fail", after=self._chance.randint(1, 3))
        restored = [
            self._phase(self._case.new, end="stop", after=self._chance.randint(1, 3)),
            self._phase(self._chance.randint(1, highest), end="fail", after=self._chance.randint(1, 3)),
        ]
        last, rescaled, held = self._last_phase(self._chance.randint(1, highest), self._chance.randint(1, highest))
        faults = self._shape.check(self._folder, self._input)
        files = batches_of_files(self._folder / "checkpoint" / "source")
        joined = len(files) - len({(source, batch) for (source, _), batch in files.items()})
        in_flight = (*restored, last, rescaled)
        return Outcome(faults, self._checkpoints, in_flight, held, joined, time.monotonic() - started)

    def _phase(self, parallelism: int, *, end: str, after: int) -> int:
        """Runs one query until it has published so often with rows in flight, and ends it; returns the rows that were
        in flight when it began."""
        reached = threading.Event()
        published = 0

        def listen(event: Event) -> None:
            nonlocal published
            if isinstance(event, EpochPublished) and event.kind != "takeover":
                published += event.rows_in_flight > 0
                self._checkpoints += 1
                if published >= after:
                    reached.set()

        query = self._start(parallelism, listen)
        in_flight = query.manifest().rows_in_flight
        while not reached.wait(0.02) and query.is_active:
            pass
        if end == "fail":
            time.sleep(self._chance.random() * 0.2)  # a random moment
            take_jobs_away(self._spark, query)
        else:
            query.stop()
        return in_flight

    def _last_phase(self, parallelism: int, then: int) -> tuple[int, int, int]:
        """Runs to the end, rescaled on the way; rows in flight at its start and at the rescale, and how many of its
        checkpoints held some. Records stay dear until there were enough of these."""
        enough = threading.Event()
        held: list[int] = []

        def listen(event: Event) -> None:
            if isinstance(event, EpochPublished) and event.kind != "takeover":
                self._checkpoints += 1
                if event.rows_in_flight:
                    held.append(event.rows_in_flight)
                if len(held) >= self._shape.held_checkpoints:
                    enough.set()

        query = self._start(parallelism, listen)
        in_flight = query.manifest().rows_in_flight
        while not enough.wait(0.02) and query.is_active:
            pass
        rescaled = query.manifest().rows_in_flight
        with suppress(pen.PenstockError):  # it may have ended: the case is void then, and says so
            query.rescale(self._shape.parallelism(then, self._case))
        set_cost(self._folder, 0.0)
        assert query.await_termination(TIMEOUT_S), f"{self._case} hangs"
        return in_flight, rescaled, len(held)

    def _start(self, parallelism: int, listen: Callable[[Event], None]) -> pen.Query:
        set_cost(self._folder, max(WORK_S / len(self._input.rows()), SLOW_ROW_COST_S if self._case.slow else 0.0))
        return pen.start(
            *self._shape.outputs(self._spark, self._folder),
            checkpoint=self._folder / "checkpoint",
            parallelism=self._shape.parallelism(parallelism, self._case),
            epoch=EPOCH,
            trigger="available_now",
            on_event=listen,
            epoch_retries=0,
            **self._shape.options,
        )


def void(shape: str, outcome: Outcome) -> str | None:
    """Why a case shows nothing, if so: what is looked for happens to records that are in flight."""
    if 0 in outcome.in_flight:
        return f"nothing was in flight at one of restores and rescale: {outcome.in_flight}"
    wanted = SHAPES[shape].held_checkpoints
    return None if outcome.held >= wanted else f"{outcome.held} of {wanted} last checkpoints had rows in flight"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="matrix")
    parser.add_argument("--only", help="one shape")
    parser.add_argument("--case", help="old-new, such as 7-2")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args(arguments)
    chosen = [case for case in cases(options.seed) if options.only in (None, case.shape)]
    if options.case:
        old, new = map(int, options.case.split("-"))
        chosen = [Case(options.only, old, new, options.slow, options.seed)]
    spark = pen.session("local[2,4]", "penstock-matrix", spark_ui_enabled="false", spark_sql_shuffle_partitions="2")
    failed = 0
    for run in range(options.runs):
        for case in chosen:
            failed += not run_one(spark, replace(case, seed=case.seed + run))
    total = options.runs * len(chosen)
    print(f"{total - failed} passed, {failed} failed")
    return 1 if failed else 0


def run_one(spark: SparkSession, case: Case) -> bool:
    """A case that fails keeps its folder, and says which records are missing."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-matrix-"))
    try:
        outcome = Run(spark, case, folder)()
    except Exception as error:  # noqa: BLE001 - a failed case must not hide the others
        print(f"FAIL {case}: {type(error).__name__}: {error}\n     kept in {folder}", flush=True)
        return False
    why_void = void(case.shape, outcome)
    wrong = outcome.faults.any()
    print(
        f"{'FAIL' if wrong or why_void else 'ok  '} {case}: {outcome.faults}; {outcome.checkpoints} checkpoints, "
        f"{'/'.join(map(str, outcome.in_flight))} rows in flight at restores and rescale, "
        f"{outcome.joined} files joined by Spark, {outcome.seconds:.1f} s"
        + (f"; VOID: {why_void}" if why_void else "")
        + (f"\n     {'; '.join(outcome.faults.seen)}\n     kept in {folder}" if wrong else ""),
        flush=True,
    )
    if not wrong:
        shutil.rmtree(folder, ignore_errors=True)
    return not wrong and why_void is None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
