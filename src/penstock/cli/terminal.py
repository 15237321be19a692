"""What the command prints. Names and messages come from folders of anybody: a terminal gets text, never commands."""

from __future__ import annotations

import click

from penstock.text import printable, printable_json, redacted


def say(text: str, *, err: bool = False) -> None:
    """Prints lines for people."""
    click.echo(printable(redacted(text), lines=True), err=err)


def say_json(document: str) -> None:
    """Prints a JSON document for programs."""
    click.echo(printable_json(redacted(document)))
