"""Runs the upkeep of a query's tables in one background thread, off the epochs' and commits' critical path.

A failure is an event and a warning, never the end of the query: the next try comes later and later.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from penstock.engine.history import utc_now
from penstock.observe.events import Event, TableKept, UpkeepFailed
from penstock.protocol.ids import SinkName
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sink, self._keeper, self._record, self._clock = sink, keeper, record, clock
        self._failures = 0
        self._said: tuple[object, ...] = ((), None)

    def step(self) -> float:
        """Lets the keeper look once; how many seconds to wait before the next look."""
        start = self._clock()
        try:
            report = self._keeper.step()
        except Exception as error:
            report = UpkeepReport(failures=(f"{type(error).__name__}: {error}",))
        self._tell(report, self._clock() - start)
        if report.failures:
            return self._failed(report.failures)
        self._failures = 0
        return 0.0 if report.more else self._keeper.every_s

    def stop(self) -> None:
        self._keeper.stop()

    def _failed(self, failures: tuple[str, ...]) -> float:
        self._failures += 1
        message = "\n".join(failures)
        _log.warning("upkeep of sink %s failed, the query goes on: %s", self._sink, message)
        self._record(UpkeepFailed(at=utc_now(), sink=SinkName(self._sink), attempt=self._failures, message=message))
        return min(PAUSE_S_MAX, max(1.0, self._keeper.every_s) * 2 ** min(self._failures, 12))

    def _tell(self, report: UpkeepReport, duration_s: float) -> None:
        said = (report.notes, report.held_by)
        if not report.did_something and (said == self._said or report.failures):
            return
        self._said = said
        self._record(
            TableKept(
                at=utc_now(),
                sink=SinkName(self._sink),
                manifests_merged=report.manifests_merged,
                files_compacted=report.files_compacted,
                files_written=report.files_written,
                snapshots_expired=report.snapshots_expired,
                orphans_removed=report.orphans_removed,
                bytes_removed=report.bytes_removed,
                held_by=report.held_by,
                notes=list(report.notes),
                duration_s=duration_s,
            )
        )


class UpkeepThread:
    """Calls each table's `step` when it is due."""

    def __init__(self, tables: Sequence[TableUpkeep], clock: Callable[[], float] = time.monotonic) -> None:
        self._tables, self._clock = tuple(tables), clock
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-upkeep", daemon=True)

    def start(self) -> None:
        if self._tables:
            self._thread.start()

    def finish(self) -> None:
        """Ends a running step soon, then the thread."""
        self._ending.set()
        for table in self._tables:
            table.stop()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        due = dict.fromkeys(self._tables, self._clock())
        while True:
            table = min(due, key=lambda each: due[each])
            if self._ending.wait(max(0.0, due[table] - self._clock())):
                return
            due[table] = table.step() + self._clock()
