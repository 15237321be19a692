"""Prints for the commands. Names and messages may come from a foreign folder, so terminal commands in them are
escaped."""

from __future__ import annotations

import click

from penstock.text import printable, printable_json, redacted, redacted_json


def say(text: str, *, err: bool = False) -> None:
    """Prints lines for people."""
    click.echo(printable(redacted(text), lines=True), err=err)


def say_json(document: str) -> None:
    """Prints a JSON document for programs."""
    click.echo(printable_json(redacted_json(document)))
