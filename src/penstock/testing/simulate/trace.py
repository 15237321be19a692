"""One line per event: the last ones are shown to people, all of them are hashed, so that two runs can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

LAST_EVENTS = 80

Event = tuple[float, str, str, str]


class Trace:
    """The events of one simulation; they become text when the trace is printed."""

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        self._show = show
        self._events: list[Event] = []

    @property
    def events(self) -> int:
        return len(self._events)

    def add(self, at: float, process: str, fiber: str, what: str) -> None:
        event = (at, process, fiber, what)
        self._events.append(event)
        if self._show is not None:
            self._show(_line(event))

    @property
    def last(self) -> list[str]:
        return [_line(event) for event in self._events[-LAST_EVENTS:]]

    def hash(self) -> str:
        return hashlib.sha256(repr(self._events).encode()).hexdigest()[:16]


def _line(event: Event) -> str:
    at, process, fiber, what = event
    return f"{at:11.6f} {f'{process}.{fiber}':<22} {what}"
