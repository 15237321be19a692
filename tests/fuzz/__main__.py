"""``python -m tests.fuzz --cases 50000``: damages folders and uses them, each case from its seed.

Cases run in worker processes, many in each, so that a crash of the process is noticed and named like any other fault.
A case that does not end is one, too: its process ends itself, and leaves the stacks of its threads.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from tests.fuzz.watch import end_after

PER_WORKER = 1000
WORKERS = 2
CASE_S_MAX = 60
"""What one case takes is milliseconds, and a commit that others always overtake takes ten seconds."""

Findings = tuple[Counter[str], list[str]]
"""What became of the cases, and what is wrong."""


def main() -> int:
    options = _options()
    if options.worker is not None:
        return _work(range(options.first, options.first + options.cases), Path(options.worker), options.only)
    started = time.monotonic()
    outcomes, wrong = run(options.first, options.cases, options.workers, partial(print, flush=True), options.only)
    spent = time.monotonic() - started
    print(f"{sum(outcomes.values())} cases from seed {options.first} on, {len(wrong)} wrong, {spent:.0f} s")
    print("  " + ", ".join(f"{told} {count}" for told, count in outcomes.most_common()))
    return 1 if wrong else 0


def run(first: int, cases: int, workers: int = WORKERS, log: object = None, only: str | None = None) -> Findings:
    """All cases, in several processes at a time. `only`: of one exercise, or those that `see`."""
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    step = min(PER_WORKER, -(-cases // workers))
    shares = [range(begin, min(begin + step, first + cases)) for begin in range(first, first + cases, step)]
    with ThreadPoolExecutor(workers) as pool:
        for share in as_completed([pool.submit(_share, share, only) for share in shares]):
            told, found = share.result()
            outcomes += told
            wrong += found
            if callable(log):
                done = sum(outcomes.values()) + len(wrong)
                log("".join(f"WRONG {line}\n" for line in found) + f"{done} of {cases} cases, {len(wrong)} wrong")
    return outcomes, wrong


def _share(seeds: range, only: str | None) -> Findings:
    """Some of the cases. After one that is wrong a new process goes on."""
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    while seeds:
        done, found = _worker(seeds, outcomes, only)
        wrong += found
        seeds = seeds[done:]
    return outcomes, wrong


def _worker(seeds: range, outcomes: Counter[str], only: str | None) -> tuple[int, list[str]]:
    """How many cases a process did, and what is wrong."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as place:
        command = [sys.executable, "-m", "tests.fuzz", "--worker", f"{place}/base", "--first", str(seeds[0])]
        command += [] if only is None else ["--only", only]
        return followed([*command, "--cases", str(len(seeds))], Path(f"{place}/base.stacks"), seeds[0], outcomes)


def followed(command: list[str], stacks: Path, first: int, outcomes: Counter[str]) -> tuple[int, list[str]]:
    """Runs a worker, as `_worker`; one that ends early died of its last case."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        begun, wrong = _heard(process.stdout, outcomes)
    last = first + max(1, begun) - 1
    if process.returncode and not (wrong and wrong[-1].startswith(f"seed {last},")):
        told = stacks.read_text() if stacks.exists() else ""
        wrong.append(_one_line(f"seed {last}: the process ended with {process.returncode}. {told}"))
    return max(1, begun), wrong


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n")


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


def _work(seeds: range, base: Path, only: str | None) -> int:
    from tests.fuzz.cases import Bench, Wrong
    from tests.fuzz.watch import limit_memory

    with base.with_name(f"{base.name}.stacks").open("w") as stacks:
        end_after(CASE_S_MAX, stacks)
        bench = Bench(base, only)
        bench.warm_up()
        limit_memory()
        for seed in seeds:
            end_after(CASE_S_MAX, stacks)
            print(f"BEGIN {seed}", flush=True)
            try:
                print(f"TOLD {bench.run(seed)}", flush=True)
            except Wrong as wrong:
                print(f"WRONG {_one_line(str(wrong))}", flush=True)
                return 1  # threads or memory of the case may be left
        return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=WORKERS, help="processes at a time")
    parser.add_argument("--only", help="one exercise, such as tables; or see, for all that only look")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
