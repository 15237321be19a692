"""One line per event: the last ones are kept for people, all of them are hashed, so that two runs can be compared."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

LAST_EVENTS = 80


class Trace:
    """The events of one simulation."""

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        self._digest = hashlib.sha256()
        self._show = show
        self.last: deque[str] = deque(maxlen=LAST_EVENTS)
        self.events = 0

    def add(self, at: float, who: str, what: str) -> None:
        line = f"{at:11.6f} {who:<22} {what}"
        self.events += 1
        self.last.append(line)
        self._digest.update(line.encode())
        if self._show is not None:
            self._show(line)

    def hash(self) -> str:
        return self._digest.hexdigest()[:16]
