"""Random pipelines over the public API, compared with DuckDB.

    python -m tests.generated --count 20000 --seed 0              in this machine's harness, on all processors
    python -m tests.generated --count 200 --seed 0 --spark        on Spark, one after the other
    python -m tests.generated --only 7                            one of them, printed whether it passes or not

A pipeline that differs is made smaller and printed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator

from tests.generated.oracle import Oracle
from tests.generated.program import draw_program
from tests.generated.run import Verdict, judge_seed
from tests.generated.workers import one_thread, text_of


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="generate", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--only", type=int, help="a single seed")
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    if options.only is not None:
        return _one(options.only, on_spark=options.spark)
    seeds = range(options.seed, options.seed + options.count)
    started = time.monotonic()
    failed = [seed for seed, text in _judged(seeds, options) if _told(seed, text)]
    took = time.monotonic() - started
    differ = f"{len(failed)} differ {failed[:50]}" if failed else "0 differ"
    print(f"seeds {seeds.start}..{seeds.stop - 1}: {len(seeds)} pipelines, {differ}, {took:.0f} s")
    return 1 if failed else 0


def _judged(seeds: range, options: argparse.Namespace) -> Iterator[tuple[int, str]]:
    if options.spark:
        from tests.generated.on_spark import judged_on_spark

        yield from judged_on_spark(seeds)
        return
    with multiprocessing.get_context("spawn").Pool(options.processes, one_thread, maxtasksperchild=50) as pool:
        yield from pool.imap(text_of, seeds, chunksize=20)


def _told(seed: int, text: str) -> bool:
    if text:
        print(f"--- seed {seed} differs\n{text}\n", flush=True)
    elif seed % 100 == 99:
        print(f"seed {seed} reached", flush=True)
    return bool(text)


def _one(seed: int, *, on_spark: bool) -> int:
    if on_spark:
        from tests.generated.on_spark import judged_on_spark

        print(draw_program(seed, on_spark=True))
        ((_, text),) = judged_on_spark([seed])
        print(text or "no difference")
        return 1 if text else 0
    verdict: Verdict = judge_seed(Oracle(), seed)
    print(verdict)
    print("no difference" if verdict.passed else "differs")
    return 0 if verdict.passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
