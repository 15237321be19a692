"""The driver's clocks, read together: what `protocol.processingtime` makes of them is processing time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.protocol.processingtime import advanced, begun


class DriverTime:
    """Processing time of one run of the driver; calling it, in any thread, reads both clocks."""

    def __init__(self, stored: int, wall_us: Callable[[], int], clock: Callable[[], float]) -> None:
        self._wall_us, self._clock = wall_us, clock
        self._lock = threading.Lock()
        self._last = begun(stored, wall_us(), clock())

    def __call__(self) -> int:
        with self._lock:
            self._last = advanced(self._last, self._wall_us(), self._clock())
            return self._last.now
