"""Looks for lost records where others lost some: a keyed stream connected with a broadcast one, rescaled from 7 to 2,
with event-time windows, again and again while other processes fight for the processors.

    python -m tests.spark.hunt --runs 300 [--seed N]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import penstock as pen
from tests.spark.matrix import Case, run_one

ROWS = 240
"""Few, for many runs: what is looked for happens at barriers, restores and rescales."""


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


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="hunt")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--burners", type=int, default=os.cpu_count() or 2)
    options = parser.parse_args(arguments)
    passed = 0
    with contention(options.burners):
        spark = pen.session("local[2,4]", "penstock-hunt", spark_ui_enabled="false", spark_sql_shuffle_partitions="2")
        for run in range(options.runs):
            passed += run_one(spark, Case("keyed_broadcast", 7, 2, seed=options.seed + run, rows=ROWS))
    failed = options.runs - passed
    print(f"{passed} passed, {failed} failed")
    if failed == 0:
        # With no fault in n runs, a rate above 3 / n would have shown itself with a probability of 95 %.
        print(f"0 faults in {passed} runs: fewer than {3 / passed:.2%} of runs, at a confidence of 95 %")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
