"""``penstock plan``: what would become of a checkpoint if a program were started on it. Nothing runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

import penstock as pen
from penstock.cli.job import job_of
from penstock.cli.terminal import say, say_json

DOES_NOT_FIT = 2
"""The exit code where the query would not start."""


def change_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options with which a user allows what would else be refused."""
    for option in (
        click.option("--renamed", multiple=True, metavar="OLD=NEW", help="A new name; may be given several times."),
        click.option("--forget", multiple=True, metavar="NAME", help="State, or a sink, that may go."),
        click.option("--reset", multiple=True, metavar="NAME", help="An operator or a sink that begins anew."),
        click.option("--drop-in-flight", multiple=True, metavar="NAME", help="Rows in flight that may go."),
    ):
        command = option(command)
    return command


def given(options: dict[str, Any]) -> dict[str, Any]:
    """Those options that the user gave, as `start` takes them."""
    found = {name: value for name, value in options.items() if value}
    if "renamed" in found:
        found["renamed"] = dict(_pair(text) for text in found["renamed"])
    if found.get("drop_in_flight") == ("all",):
        found["drop_in_flight"] = "all"
    return found


@click.command()
@click.argument("job")
@click.option("--checkpoint", required=True, help="The checkpoint folder.")
@change_options
@click.option("--restore", help="A checkpoint of the folder, or another folder.")
@click.option("--fork", is_flag=True, help="As a second query beside the one in the folder of --restore.")
@click.option("--max-parallelism", type=int, help="As the query has it; default: as start has it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def plan(job: str, checkpoint: str, as_json: bool, **options: Any) -> None:
    """Tell what a start of JOB on a checkpoint would carry on, convert, forget or refuse.

    JOB is FILE.py:FUNCTION. The function returns an output, a list of them, or a dictionary with "outputs" and with
    arguments of start; if it takes an argument, it gets a Spark session. Exit code 0: the query would start; 2: it
    would not.
    """
    program = job_of(job)
    made = pen.start(*program.outputs, checkpoint=checkpoint, dry_run=True, **program.with_options(given(options)))
    if as_json:
        say_json(made.to_json())
    else:
        say(str(made))
    sys.exit(0 if made.fits else DOES_NOT_FIT)


def _pair(text: str) -> tuple[str, str]:
    old, _, new = text.partition("=")
    return old, new
