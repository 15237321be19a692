"""Chaos on real Spark: random pipelines, faults at random moments, and every record exactly once.

    python -m tests.chaos [--runs N] [--first SEED] [--seed SEED] [--shape NAME]

One line per run. A run that fails keeps its folder, with the logs of its drivers, and says how to repeat it.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.chaos.drivers import Drivers
from tests.chaos.run import Run
from tests.chaos.schedule import schedule
from tests.chaos.shapes import SHAPES


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="chaos")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument(
        "--first", type=int, default=random.SystemRandom().randrange(10**6), help="seed of the first run"
    )
    parser.add_argument("--seed", type=int, help="one run only, with this seed")
    parser.add_argument("--shape", choices=SHAPES, help="only seeds that choose this pipeline")
    parser.add_argument("--verbose", action="store_true", help="also the messages of queries that ended")
    options = parser.parse_args(arguments)
    chosen = (seed for seed in itertools.count(options.first) if options.shape in (None, schedule(seed).shape))
    seeds = list(itertools.islice(chosen, options.runs)) if options.seed is None else [options.seed]
    print(f"seeds {seeds[0]} to {seeds[-1]}", flush=True)
    with tempfile.TemporaryDirectory(prefix="penstock-chaos-", ignore_cleanup_errors=True) as place:
        drivers = Drivers(Path(place))
        try:
            passed = sum(run_one(seed, drivers, verbose=options.verbose) for seed in seeds)
        finally:
            drivers.close()
    failed = len(seeds) - passed
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


def run_one(seed: int, drivers: Drivers, *, verbose: bool = False) -> bool:
    """Prints what came of it."""
    plan = schedule(seed)
    folder = Path(tempfile.mkdtemp(prefix=f"penstock-chaos-{seed}-"))
    run = Run(plan, folder, drivers)
    passed = False
    try:
        outcome = run()
        passed = not outcome.faults.any()
        print(f"{'ok  ' if passed else 'FAIL'} seed {seed}: {plan}: {outcome}", flush=True)
    except Exception as error:  # noqa: BLE001 - a failed run must not hide the others
        done = "; ".join(run.done) or "before the first fault"
        print(f"FAIL seed {seed}: {plan}: {done}: {type(error).__name__}: {error}", flush=True)
    finally:
        logs = run.close(keep=not passed)
    if verbose or not passed:
        for message in run.errors:
            print("     " + message.replace("\n", "\n     "), flush=True)
    if passed:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        for log in logs:
            shutil.copy(log, folder / f"{log.parent.name}.log")
        print(f'     kept in {folder}; repeat it with: make chaos ARGS="--seed {seed}"', flush=True)
    return passed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
