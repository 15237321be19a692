"""``python -m penstock.testing.simulate.crowd --subtasks 10240 --epochs 50 --seed 1``."""

from __future__ import annotations

import time

import click

from penstock.testing.simulate.crowd.world import Crowd
from penstock.testing.simulate.runner import quiet


@click.command()
@click.option("--subtasks", type=int, default=10_240, show_default=True)
@click.option("--max-parallelism", type=int, default=32_768, show_default=True)
@click.option("--epochs", type=int, default=50, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
def main(subtasks: int, max_parallelism: int, epochs: int, seed: int) -> None:
    """A query of many subtasks under faults; ends with an error if a number is missing, doubled or out of order."""
    quiet()
    started = time.perf_counter()
    tally = Crowd(seed, subtasks, max_parallelism, epochs).run()
    click.echo(
        f"seed {seed}: ok, {subtasks} subtasks, {tally.epochs} epochs, {tally.rows} rows, each once; {tally.drivers}"
        f" drivers, {tally.killed} killed, {tally.fenced} fenced, {tally.rescaled} rescales,"
        f" {time.perf_counter() - started:.0f} s"
    )


if __name__ == "__main__":
    main()
