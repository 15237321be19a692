"""Ctrl-C, Ctrl-C twice and SIGTERM for a query on Spark with a Paimon table, in a real terminal.

    python -m tests.spark.interrupts [--runs N] [--seed SEED]

The demo's job is interrupted at random moments, again and again over one input: after so many interrupts it may run to
its end, and its table is read back. One line per interrupt.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from penstock.cli.demo import audit, generate
from tests.support.terminal import Terminal, terminal

CLICKS = 60_000
PER_INPUT = 5
"""Interrupts that share one input."""
EPOCHS_MAX = 2
LIMIT_S = 240.0
INTERRUPTED, TERMINATED = -2, 143
"""Exit codes: a shell shows the first one, a program that SIGINT has ended, as 130."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an interrupt did; `faults` is empty if all is well."""

    what: str
    epochs: int
    seconds: float
    code: int
    faults: tuple[str, ...]


def command(folder: Path, parallelism: int) -> list[str]:
    return [sys.executable, "-m", "penstock.cli.demo_job", str(folder), str(parallelism)]


def interrupt(what: str, folder: Path, rng: random.Random) -> Outcome | None:
    """None if the job has ended before it was interrupted."""
    with terminal(command(folder, rng.randint(1, 4)), LIMIT_S) as screen:
        screen.wait_for("\nepoch", rng.randint(1, 4))
        time.sleep(rng.uniform(0.0, 1.2))
        if screen.program.poll() is not None:
            return None
        before, began = screen.shown.count("\nepoch"), time.monotonic()
        _press(what, screen)
        code, seconds = screen.end(), time.monotonic() - began
        epochs = screen.shown.count("\nepoch") - before
        if code == 0:
            return None
        faults = tuple(_faults(what, screen.shown, epochs, code))
        if faults:
            print(screen.shown[-4000:], flush=True)
        return Outcome(what, epochs, seconds, code, faults)


def _press(what: str, screen: Terminal) -> None:
    if what == "SIGTERM":
        screen.program.terminate()
        return
    screen.press_ctrl_c()
    if what == "Ctrl-C twice":
        screen.wait_for("once more")
        screen.press_ctrl_c()


def _faults(what: str, shown: str, epochs: int, code: int) -> list[str]:
    faults = []
    if epochs > EPOCHS_MAX:
        faults.append(f"{epochs} more epochs")
    if code != (TERMINATED if what == "SIGTERM" else INTERRUPTED):
        faults.append(f"exit code {code}")
    if shown.count("Traceback") > (0 if what == "SIGTERM" else 1):
        faults.append("a traceback that is not that of KeyboardInterrupt")
    if what != "SIGTERM" and not shown.rstrip().endswith("KeyboardInterrupt"):
        faults.append("the last line is not KeyboardInterrupt")
    faults += [f"{words} is shown" for words in ("PEN-", " ERROR ", "BrokenPipe", "Py4J") if words in shown]
    return faults


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="interrupts")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args(arguments)
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    rng = random.Random(options.seed)
    print(f"seed {options.seed}", flush=True)
    kinds = ("Ctrl-C", "SIGTERM", "Ctrl-C twice")
    done = failed = 0
    while done < options.runs:
        folder = Path(tempfile.mkdtemp(prefix="penstock-interrupts-"))
        generate(folder / "input", CLICKS)
        for _ in range(min(PER_INPUT, options.runs - done)):
            outcome = interrupt(kinds[done % len(kinds)], folder, rng)
            if outcome is None:
                break
            done += 1
            failed += bool(outcome.faults)
            print(f"{'FAIL' if outcome.faults else 'ok  '} {done:>3} {outcome}", flush=True)
        exact = _finished(folder)
        failed += not exact
        print(f"{'ok  ' if exact else f'FAIL (kept in {folder})'}     {exact or 'not exact'}", flush=True)
    print(f"{done - failed} passed, {failed} failed")
    return 1 if failed else 0


def _finished(folder: Path) -> str | None:
    """Lets the job run to its end; what its table holds, None if that is wrong."""
    with terminal(command(folder, 3), LIMIT_S) as screen:
        if screen.end() != 0:
            print(screen.shown[-3000:])
            return None
    found = audit(folder, CLICKS)
    if not found.ok:
        return None
    shutil.rmtree(folder, ignore_errors=True)
    return str(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
