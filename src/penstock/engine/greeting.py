"""The first seconds of a query: one line when it starts, one when its first epoch is done. Spark is silent so long.

The lines go to the logger ``penstock``. A program that has not set up logging would not see them, so they go to the
error stream there; ``logging.getLogger("penstock").setLevel("WARNING")`` silences both.
"""

from __future__ import annotations

import logging
import sys

from penstock.observe.events import EpochPublished, Event, QueryStarted
from penstock.observe.progress import human_seconds
from penstock.text import printable, redacted

_log = logging.getLogger("penstock")


class Greeting:
    """A listener; says each of its lines once."""

    def __init__(self, folder: str) -> None:
        self._folder, self._said_first = redacted(folder), False

    def __call__(self, event: Event) -> None:
        match event:
            case QueryStarted():
                _say(started_line(event, self._folder))
            case EpochPublished() if event.kind != "takeover" and not self._said_first:
                self._said_first = True
                _say(first_line(event))
            case _:
                pass


def started_line(event: QueryStarted, folder: str) -> str:
    """Name, folder, generation, where it goes on, parallelism, and where to look."""
    begins = "from the beginning" if event.restored is None else f"goes on from checkpoint {event.restored}"
    if event.origin is not None:
        begins += f" of {event.origin}"
    subtasks = ", ".join(f"{stage} {count}" for stage, count in event.parallelism.items())
    return (
        f"penstock: {event.name} starts in {folder}, generation {event.generation}, {begins}; "
        f"subtasks: {subtasks}; see it with: penstock status {folder}"
    )


def first_line(event: EpochPublished) -> str:
    return (
        f"penstock: first epoch done in {human_seconds(event.duration_s)}: checkpoint {event.checkpoint}, "
        f"{event.rows_in:,} rows in, {event.rows_processed:,} processed, {event.rows_in_flight:,} in flight"
    )


def _say(line: str) -> None:
    line = printable(line)
    if _log.hasHandlers() or _log.level != logging.NOTSET:
        _log.info("%s", line)
    else:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
