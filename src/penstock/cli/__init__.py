"""The command line: text for people, ``--json`` for programs."""

from penstock.cli.main import main

__all__ = ["main"]
