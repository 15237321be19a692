"""Hunts mutants: ``python -m tests.sim.hunting`` all of them, or those that are named, each in a child of its own.

A mutant is caught by a seed of the simulator or by a test that fails with the fault and passes without it. What caught
it last time is in `noticed.json` and is tried first: ``--note`` writes that file anew, ``--forget`` does without it.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock.testing.simulate.runner import quiet
from tests.sim.forked import Done, in_children
from tests.sim.mutants import ALL, named
from tests.sim.noticing import Caught, by_seeds, by_tests, failing

SEEDS_MAX = 500
MUTANT_S_MAX = 600
NOTICED = Path(__file__).with_name("noticed.json")


def hunt(name: str, noticed: str | None = None) -> Caught:
    """What notices a mutant; `noticed` is what did the last time. This process is good for nothing else afterwards."""
    mutant = named(name)
    if mutant.tests:
        return by_tests(mutant, first=noticed)
    quiet()
    gc.set_threshold(100_000)
    return by_seeds(mutant, dict.fromkeys([*([] if noticed is None else [int(noticed)]), *range(SEEDS_MAX)]))


def hunt_all(names: Sequence[str], noticed: dict[str, str], jobs: int) -> dict[str, Caught]:
    """Each in a child, printed when it ends."""
    found: dict[str, Caught] = {}
    for done in in_children(lambda name: hunt(name, noticed.get(name)), names, jobs, MUTANT_S_MAX):
        caught = found[done.item] = done.answer or Caught(None, f"NOT RUN: {done.why}")
        _print(done, caught)
    return _without_broken_tests(found)


def _without_broken_tests(found: dict[str, Caught]) -> dict[str, Caught]:
    """A test that fails without its mutant, too, has noticed nothing."""
    tests = sorted({caught.by for name, caught in found.items() if named(name).tests and caught.by is not None})
    if not tests:
        return found
    (done,) = in_children(lambda _: failing(tests), [""], 1, MUTANT_S_MAX)
    broken = tests if done.answer is None else done.answer
    if broken:
        print(f"fail without a mutant: {', '.join(broken)} {done.why}")
    return {
        name: Caught(None, "its test fails without it, too") if caught.by in broken else caught
        for name, caught in found.items()
    }


def _print(done: Done[Caught], caught: Caught) -> None:
    by = "-" if caught.by is None else "test" if "::" in caught.by else caught.by
    test = "" if by != "test" or caught.by is None else caught.by.partition("::")[2] + ": "
    print(f"{done.item:<24} {by:>4} {done.real_s:5.1f} s  {(test + caught.message)[:150]}", flush=True)


def _chosen(options: argparse.Namespace) -> list[str]:
    names = [mutant.name for mutant in ALL]
    if options.third is not None:
        return random.Random(options.third).sample(names, len(names) // 3)
    unknown = set(options.names) - set(names)
    assert not unknown, f"no such mutants: {sorted(unknown)}"
    return options.names or names


def main(arguments: Sequence[str]) -> int:
    """Prints the table; returns how many mutants survived."""
    parser = argparse.ArgumentParser(description="Puts faults into our own code; each must be noticed.")
    parser.add_argument("names", nargs="*", help="some mutants; all without a name")
    parser.add_argument("--third", type=int, metavar="SEED", help="a third of all mutants, drawn from a seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--forget", action="store_true", help="do not begin with what noticed a mutant the last time")
    parser.add_argument("--note", action="store_true", help="keep what noticed them for the next time")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    noticed = {} if options.forget else msgspec.json.decode(NOTICED.read_bytes(), type=dict[str, str])
    names = _chosen(options)
    print(f"{'mutant':<24} seed    time  what the checker or the test said")
    found = hunt_all(names, noticed, options.jobs)
    survived = [name for name in names if found[name].by is None]
    if options.note:
        _note(found)
    caught, real_s = len(names) - len(survived), time.perf_counter() - started
    print(f"{caught} of {len(names)} mutants caught, by the simulator within {SEEDS_MAX} seeds, {real_s:.0f} s")
    for name in survived:
        print(f"NOT CAUGHT: {name} ({named(name).what}): {found[name].message}")
    return len(survived)


def _note(found: dict[str, Caught]) -> None:
    known = msgspec.json.decode(NOTICED.read_bytes(), type=dict[str, str])
    known |= {name: caught.by for name, caught in found.items() if caught.by is not None}
    kept = {mutant.name: known[mutant.name] for mutant in ALL if mutant.name in known}
    NOTICED.write_bytes(msgspec.json.format(msgspec.json.encode(kept)) + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
