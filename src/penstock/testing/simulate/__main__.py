"""``python -m penstock.testing.simulate --seed 7 --trace`` or ``--seeds 0..9999``."""

from __future__ import annotations

import os
import sys
import time

import click

from penstock.testing.simulate.runner import quiet, seed_pool, simulate, simulate_changes


@click.command()
@click.option("--seed", type=int, help="One seed.")
@click.option("--trace", is_flag=True, help="One line per event.")
@click.option("--seeds", help="A range of seeds, as 0..9999.")
@click.option("--jobs", type=int, default=os.cpu_count() or 1, show_default=True, help="Processes.")
@click.option("--changes", is_flag=True, help="Programs change between starts.")
def main(seed: int | None, seeds: str | None, jobs: int, *, trace: bool, changes: bool) -> None:
    """Simulates whole runs with faults; ends with 1 if a checker found something."""
    quiet()
    if seed is not None:
        outcome = simulate(seed, click.echo if trace else None, changes=changes)
        click.echo(outcome.text())
        sys.exit(outcome.failure is not None)
    first, _, last = (seeds or "0..99").partition("..")
    sys.exit(run_many(range(int(first), int(last or first) + 1), jobs, changes=changes) > 0)


def run_many(seeds: range, jobs: int, *, changes: bool = False) -> int:
    """Runs seeds in several processes, prints what failed, returns how many did."""
    started = time.perf_counter()
    failed = events = checkpoints = 0
    with seed_pool(jobs) as pool:
        for outcome in pool.imap_unordered(simulate_changes if changes else simulate, seeds, chunksize=8):
            events += outcome.events
            checkpoints += outcome.checkpoints
            if outcome.failure is not None:
                failed += 1
                click.echo(outcome.text())
    click.echo(
        f"{len(seeds) - failed} passed, {failed} failed: seeds {seeds.start}..{seeds.stop - 1}, {events} events,"
        f" {checkpoints} checkpoints, {time.perf_counter() - started:.0f} s"
    )
    return failed


if __name__ == "__main__":
    main()
