"""A query that shows itself: its panel in a notebook, its lines in a terminal, once or again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from penstock.engine.background import wait_for
from penstock.errors import PenstockError
from penstock.observe.model import QueryView
from penstock.observe.notebook.screen import Screen

_LAST_LOOKS = 5
"""An object store has the last line of a history about a second after the end."""


def follow(look: Callable[[], QueryView], screen: Screen, every_s: float, ended: threading.Event) -> None:
    """Draws until the query has ended, and once more then. A look that fails is left out."""
    looks_left = _LAST_LOOKS
    while True:
        over = ended.is_set()
        with suppress(PenstockError):
            view = look()
            screen.draw(view)
            if over and not view.verdict.alive:
                return
        if over:
            looks_left -= 1
            if not looks_left:
                return
            time.sleep(min(every_s, 0.5))
        else:
            wait_for(ended, every_s)


def follow_beside(look: Callable[[], QueryView], screen: Screen, every_s: float, ended: threading.Event) -> None:
    """The same in a thread of its own, which ends with the query."""
    threading.Thread(target=follow, args=(look, screen, every_s, ended), name="penstock-watch", daemon=True).start()
