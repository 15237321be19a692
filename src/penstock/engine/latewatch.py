"""Says loudly that many rows come too late: their results are not in the table, and nobody asked for that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from penstock.observe.events import EpochPublished

SHARE = 0.01
"""From one late row in a hundred on something is wrong with the watermark, and not with single rows."""
EVERY_S = 60.0
"""A warning for each minute in which that is so, and not for each epoch."""

_log = logging.getLogger("penstock")


def late_rows(counters: Mapping[str, int]) -> int:
    """Of all operators, since the query began."""
    return sum(count for name, count in counters.items() if name.endswith(".late"))


class LateWatch:
    """One per query; `observe` sees every epoch. `late` is what earlier runs have counted."""

    def __init__(self, name: str, clock: Callable[[], float], late: int) -> None:
        self._name, self._clock, self._late = name, clock, late
        self._rows = 0
        self._again_s = clock()

    def observe(self, event: EpochPublished) -> None:
        self._rows += event.rows_processed
        late, now_s = late_rows(event.counters), self._clock()
        new = late - self._late
        if now_s < self._again_s:
            return
        if new > 0 and new >= SHARE * self._rows:
            self._again_s = now_s + EVERY_S
            _log.warning(
                "%s: %d late rows among %d processed; they are not in the results. Give watermark= more time, or each"
                " partition its own watermark with watermark_by=; the side output 'late' of windows has the rows",
                self._name,
                new,
                self._rows,
            )
        self._late, self._rows = late, 0
