"""Calls `on_timer` for due timers, per key in the order of time, including timers that `on_timer` sets meanwhile.

A timer that `on_timer` sets to a moment after its own fires in its turn. One that is set to its own moment or before
could be set again and again, so it waits for the next epoch. This bounds what one call does.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, TypeAlias

from penstock.operators.process.timers import Setting, Timers, moment_of
from penstock.operators.process.user_output import RowCollector
from penstock.records import Time

OnTimer: TypeAlias = Callable[[dict[str, Any], Any, Any, RowCollector, Timers], None]
TIME, NAME = "__penstock_time", "__penstock_name"
"""Columns beside those of the key. Users' columns cannot have these names."""
_CHAINED_MAX = 1000
"""How many timers that timers set may fire in one call. Further ones wait until the barrier was checked."""


class Firing:
    """User code for one key in the form of `process`: the rows are its timers of one kind of time."""

    def __init__(self, on_timer: OnTimer, time: Time, end: int, last: int, *, event: bool) -> None:
        """`end` is the last moment of those that fire together, `last` the last one that is due."""
        self._on_timer, self._time = on_timer, time
        self._end, self._last, self._event = end, last, event
        self.again = False
        """Whether a timer was set that comes before some of those that were read."""
        self.left = False
        """Whether a timer was set that is due and waits for the next epoch."""

    def __call__(
        self, key: dict[str, Any], rows: list[dict[str, Any]], view: Any, out: RowCollector, timers: Timers
    ) -> None:
        pending = [(row[TIME], row[NAME]) for row in rows]
        planned = {name: moment for moment, name in pending}
        heapq.heapify(pending)
        changes, kept = timers.changes_of_key(), dict[str, Setting | None]()
        calls_left = len(rows) + _CHAINED_MAX
        while pending and calls_left:
            moment, name = heapq.heappop(pending)
            if planned.get(name) != moment:
                continue  # moved or cancelled meanwhile
            del planned[name]
            changes.clear()  # afterwards it has only the changes of this call
            timers.fire(name)
            self._on_timer(key, moment_of(moment), view, out, timers)
            calls_left -= 1
            kept[name] = None
            for changed, setting in changes.items():
                planned.pop(changed, None)
                kept[changed] = setting
                if setting is not None and self._fires_now(setting, moment):
                    planned[changed], kept[changed] = setting.time, None
                    heapq.heappush(pending, (setting.time, changed))
        self.again |= bool(planned)
        changes.clear()
        changes.update(kept)
        changes.update({name: Setting(moment, self._event) for name, moment in planned.items()})

    def _fires_now(self, setting: Setting, moment: int) -> bool:
        """Whether a timer that was set at `moment` fires in the same call."""
        if not self._event:
            # Processing time stands still in an epoch, so a new timer in processing time is never due.
            self.left |= setting.event and setting.time <= self._time.highest
            return False
        if not setting.event:
            return False
        self.left |= setting.time <= moment
        self.again |= self._end < setting.time <= self._last
        return moment < setting.time <= self._end
