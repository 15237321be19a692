"""``python -m tests.fuzz --cases 50000``: damages folders and uses them, each case from its seed.

Cases run in worker processes, many in each, so that a crash of the process is noticed and named like any other fault.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path

PER_WORKER = 1000


def main() -> int:
    options = _options()
    if options.worker is not None:
        return _work(range(options.first, options.first + options.cases), Path(options.worker))
    started = time.monotonic()
    outcomes, wrong = run(options.first, options.cases, log=partial(print, flush=True))
    spent = time.monotonic() - started
    print(f"{sum(outcomes.values())} cases from seed {options.first} on, {len(wrong)} wrong, {spent:.0f} s")
    print("  " + ", ".join(f"{told} {count}" for told, count in outcomes.most_common()))
    return 1 if wrong else 0


def run(first: int, cases: int, log: object = None) -> tuple[Counter[str], list[str]]:
    """What became of the cases, and what is wrong."""
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    seed, end = first, first + cases
    while seed < end:
        count = min(PER_WORKER, end - seed)
        done, found = _worker(seed, count, outcomes)
        wrong += found
        seed += done
        if callable(log):
            log("".join(f"WRONG {line}\n" for line in found) + f"{seed - first} of {cases} cases, {len(wrong)} wrong")
    return outcomes, wrong


def _worker(first: int, count: int, outcomes: Counter[str]) -> tuple[int, list[str]]:
    """How many cases a process did, and what is wrong; one that ends early died of its last case."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as place:
        command = [sys.executable, "-m", "tests.fuzz", "--worker", f"{place}/base", "--first", str(first)]
        with subprocess.Popen([*command, "--cases", str(count)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            begun, wrong = _heard(process.stdout, outcomes)
        code = process.returncode
    if code and not (wrong and wrong[-1].startswith(f"seed {first + begun - 1},")):
        wrong.append(f"seed {first + begun - 1}: the process ended with {code}")
    return max(1, begun), wrong


def _heard(lines: Iterable[str], outcomes: Counter[str]) -> tuple[int, list[str]]:
    """How many cases a worker began, and what it found wrong."""
    begun, wrong = 0, []
    for line in lines:
        kind, _, rest = line.rstrip("\n").partition(" ")
        begun += kind == "BEGIN"
        if kind == "TOLD":
            outcomes[rest] += 1
        elif kind == "WRONG":
            wrong.append(rest)
    return begun, wrong


def _work(seeds: range, base: Path) -> int:
    from tests.fuzz.cases import Bench, Wrong
    from tests.fuzz.watch import limit_memory

    bench = Bench(base)
    bench.warm_up()
    limit_memory()
    for seed in seeds:
        print(f"BEGIN {seed}", flush=True)
        try:
            print(f"TOLD {bench.run(seed)}", flush=True)
        except Wrong as wrong:
            print("WRONG " + str(wrong).replace("\n", "\\n"), flush=True)
            return 1  # threads or memory of the case may be left
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
