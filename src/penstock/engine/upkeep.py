"""Runs the upkeep of a query's tables in the background, off the epochs' and commits' critical path.

A failure is an event and a warning, never the end of the query: the next try comes later and later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from penstock.engine.background import AT_ONCE, Background, Pause, Spawn, StepThread
from penstock.engine.history import utc_now
from penstock.observe.events import Event, TableKept, UpkeepFailed
from penstock.sinks.upkeep import Keeper, UpkeepReport

_log = logging.getLogger("penstock")

PAUSE_S_MAX = 3600.0
"""After failures the pause doubles up to this."""


class TableUpkeep:
    """One table's keeper: what to do with its reports, and when to call it again."""

    def __init__(
        self,
        sink: str,
        keeper: Keeper,
        record: Callable[[Event], None],
        *,
        spawn: Spawn = StepThread,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sink, self._keeper, self._record, self._clock = sink, keeper, record, clock
        self._failures = 0
        self._said: tuple[object, ...] = ((), None)
        self._ending = False
        self._background: Background = spawn(f"penstock-upkeep-{sink}", self.step, self._die)

    def start(self) -> None:
        self._background.start()

    def stop(self) -> None:
        """Ends a running step soon; `join` waits for it."""
        self._ending = True
        self._keeper.stop()
        self._background.wake()

    def join(self, timeout_s: float | None = None) -> bool:
        return self._background.join(timeout_s)

    def step(self) -> Pause:
        """Lets the keeper look once."""
        if self._ending:
            return None
        start = self._clock()
        try:
            report = self._keeper.step()
        except Exception as error:
            report = UpkeepReport(failures=(f"{type(error).__name__}: {error}",))
        self._tell(report, self._clock() - start)
        if report.failures:
            return self._failed(report.failures)
        self._failures = 0
        return AT_ONCE if report.more else self._keeper.every_s

    def _failed(self, failures: tuple[str, ...]) -> float:
        self._failures += 1
        message = "\n".join(failures)
        _log.warning("upkeep of sink %s failed, the query goes on: %s", self._sink, message)
        self._record(UpkeepFailed(at=utc_now(), sink=self._sink, attempt=self._failures, message=message))
        return min(PAUSE_S_MAX, max(1.0, self._keeper.every_s) * 2 ** min(self._failures, 12))

    def _die(self, error: BaseException) -> None:
        _log.warning("upkeep of sink %s ended, the query goes on: %s", self._sink, error)

    def _tell(self, report: UpkeepReport, duration_s: float) -> None:
        said = (report.notes, report.held_by)
        if not report.did_something and (said == self._said or report.failures):
            return
        self._said = said
        self._record(
            TableKept(
                at=utc_now(),
                sink=self._sink,
                manifests_merged=report.manifests_merged,
                files_compacted=report.files_compacted,
                files_written=report.files_written,
                bytes_compacted=report.bytes_compacted,
                snapshots_expired=report.snapshots_expired,
                orphans_removed=report.orphans_removed,
                bytes_removed=report.bytes_removed,
                held_by=report.held_by,
                notes=list(report.notes),
                duration_s=duration_s,
            )
        )


class Upkeeping:
    """The upkeep of all tables of a query."""

    def __init__(self, tables: Sequence[TableUpkeep]) -> None:
        self._tables = tuple(tables)

    def start(self) -> None:
        for table in self._tables:
            table.start()

    def finish(self, timeout_s: float | None = None) -> bool:
        """False when a table's keeper does not end in time; it does no harm beside another one."""
        for table in self._tables:
            table.stop()
        ended = [table.join(timeout_s) for table in self._tables]
        return all(ended)
