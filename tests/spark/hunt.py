"""Looks for lost records where others lost some: streams that meet in one stage, with event-time windows, failed,
restored and rescaled again and again while other processes fight for the processors.

Many cases run at once in one Spark session, so a run costs about a second. The tally is kept in a file, so that a long
hunt may be made of pieces:

    python -m tests.spark.hunt --runs 300 [--seed N] [--at-once N] [--tally FILE]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import penstock as pen
from tests.spark.matrix import Case, run_one

ROWS = 240
"""Few, for many runs: what is looked for happens at barriers, restores and rescales."""
SHAPES = ("keyed_broadcast", "union", "multi_input", "join", "hold_back", "diamond", "self_union", "large_union")
SLOTS = 8
"""Records cost time, not work: more subtasks may wait than there are processors."""


def case_of(seed: int) -> Case:
    """Every fourth case is the one in which others lost records."""
    chance = random.Random(f"hunt {seed}")
    if seed % 4 == 0:
        return Case("keyed_broadcast", 7, 2, seed=seed, rows=ROWS)
    shape = chance.choice(SHAPES)
    rows = None if shape.startswith("large") else ROWS
    return Case(shape, chance.randint(1, 7), chance.randint(1, 7), seed=seed, rows=rows)


def burn() -> None:
    while True:
        sum(range(100_000))


@contextmanager
def contention(processes: int) -> Iterator[None]:
    burners = [multiprocessing.Process(target=burn, daemon=True) for _ in range(processes)]
    for burner in burners:
        burner.start()
    try:
        yield
    finally:
        for burner in burners:
            burner.terminate()


class Tally:
    """How often each shape passed and failed, over all pieces of a hunt: a line per run."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lines = path.read_text().splitlines() if path is not None and path.exists() else []

    def add(self, case: Case, *, passed: bool) -> None:
        line = json.dumps({"shape": case.shape, "seed": case.seed, "passed": passed})
        self._lines.append(line)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(line + "\n")

    def text(self) -> str:
        runs = [json.loads(line) for line in self._lines]
        passed = Counter(run["shape"] for run in runs if run["passed"])
        failed = Counter(run["shape"] for run in runs if not run["passed"])
        shapes = [f"{shape}: {passed[shape]} passed, {failed[shape]} failed" for shape in sorted(passed | failed)]
        total = [f"{passed.total()} passed, {failed.total()} failed"]
        if runs and not failed:
            # With no fault in n runs, a rate above 3 / n would have shown itself with a probability of 95 %.
            total.insert(0, f"0 faults in {len(runs)} runs: fewer than {3 / len(runs):.2%}, at a confidence of 95 %")
        return "\n".join([*shapes, *total])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="hunt")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--burners", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--tally", type=Path)
    options = parser.parse_args(arguments)
    tally, failed = Tally(options.tally), 0
    cases = [case_of(seed) for seed in range(options.seed, options.seed + options.runs)]
    with contention(options.burners):
        spark = pen.session(
            f"local[{SLOTS},4]", "penstock-hunt", spark_ui_enabled="false", spark_sql_shuffle_partitions="2"
        )
        with ThreadPoolExecutor(options.at_once) as pool:
            for case, passed in zip(cases, pool.map(lambda case: run_one(spark, case), cases), strict=True):
                tally.add(case, passed=passed)
                failed += not passed
    print(tally.text())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
