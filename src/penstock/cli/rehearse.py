"""``penstock rehearse``: a changed program on a fork of a running query's state, with a report."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from typing import Any

import click
import msgspec

import penstock as pen
from penstock.cli.job import job_of
from penstock.cli.plan import DOES_NOT_FIT, change_options, given
from penstock.cli.terminal import say, say_json
from penstock.errors import CheckpointMismatch

FAILED = 1
NICENESS = 10
"""About a tenth of the processor where a query of normal priority wants all of it."""
INTERRUPTED = 130
"""What shells expect of a program that Ctrl-C ended."""


@click.command()
@click.argument("job")
@click.option("--checkpoint", required=True, help="The checkpoint folder of the original, or FOLDER@NUMBER.")
@click.option("--epochs", default=20, show_default=True, help="How many epochs to run.")
@click.option("--timeout", default="5 min", show_default=True, help="How long at most.")
@click.option("--against", metavar="JOB", help="The old program, to compare results with.")
@click.option("--key", multiple=True, metavar="SINK=COLUMN,…", help="Compare this sink's results by these columns.")
@change_options
@click.option("--epoch", help="The length of an epoch, as the query has it.")
@click.option("--parallelism", type=int, help="Default: as the original has it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def rehearse(
    job: str,
    checkpoint: str,
    epochs: int,
    timeout: str,
    against: str | None,
    key: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Run JOB on a fork of a checkpoint and on the real source, into no table, and tell what it did.

    JOB is FILE.py:FUNCTION, as for plan. The original may run: it is only read. Nothing is left behind. Exit code 0:
    the program ran; 1: it ended with an error; 2: it does not fit the checkpoint.
    """
    _make_way()
    program = job_of(job)
    arguments = {name: part for name, part in program.arguments.items() if name not in _NOT_REHEARSED}
    old = None if against is None else job_of(against)
    try:
        made = pen.rehearse(
            *program.outputs,
            checkpoint=checkpoint,
            epochs=epochs,
            timeout=timeout,
            against=None if old is None else old.outputs,
            against_dead_letters=None if old is None else old.arguments.get("dead_letters"),
            keys={sink: columns.split(",") for sink, _, columns in (text.partition("=") for text in key)},
            **{**arguments, **given(options)},
        )
    except CheckpointMismatch as error:
        if as_json:
            say_json(json.dumps({"error": msgspec.to_builtins(error.to_report())}, indent=2))
        else:
            say(str(error), err=True)
        sys.exit(DOES_NOT_FIT)
    except KeyboardInterrupt:
        say("stopped; nothing is left behind", err=True)
        sys.exit(INTERRUPTED)
    if as_json:
        say_json(made.to_json())
    else:
        say(str(made))
    sys.exit(0 if made.ok else FAILED)


def _make_way() -> None:
    """Spark and its workers inherit the priority, so a query on the same machine goes first."""
    with suppress(AttributeError, OSError):  # not everywhere
        os.nice(NICENESS)


_NOT_REHEARSED = frozenset({"checkpoint", "restore", "fork", "retain", "on_event", "metrics", "name", "dry_run"})
"""Arguments of `start` that are about the original, or about what is seen of it."""
