"""The streaming query that feeds the epoch loop: Structured Streaming reads the sources and keeps their offsets."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from penstock.engine.cluster import OfferedBatch
from penstock.engine.feed import Demand, SourceFigures, SourceStopped
from penstock.engine.sourcelog import all_committed, rewind_source
from penstock.errors import MissingFile
from penstock.protocol.ids import BatchId
from penstock.protocol.layout import SOURCE, SOURCE_METADATA, offsets_path
from penstock.protocol.silence import SourceState
from penstock.spark.failures import explained, session_stopped
from penstock.spark.pools import in_pool, pool_of
from penstock.spark.quirks.hadoop import connector, hadoop_url
from penstock.spark.quirks.interruption import end_interrupted
from penstock.spark.quirks.logfiles import QuickLogFiles
from penstock.spark.quirks.outliving import await_end
from penstock.spark.quirks.querynames import start_named
from penstock.spark.quirks.quietstop import stop_quietly
from penstock.spark.quirks.sourcestatus import state_of
from penstock.spark.quirks.stopped import is_stopped
from penstock.spark.sourceprogress import source_figures
from penstock.spark.stage_job.jobs import StageJobs, settings_for
from penstock.store.base import Store


@dataclass(slots=True)
class _Reading:
    """A streaming query as it was started."""

    query: StreamingQuery
    log_files: QuickLogFiles
    in_hand: threading.Event = field(default_factory=threading.Event)
    """Its handler has a micro-batch."""
    stopping: threading.Event = field(default_factory=threading.Event)
    parked: threading.Event = field(default_factory=threading.Event)
    """Its handler has a micro-batch that the loop does not take, and waits for the end."""


class SparkFeed:
    """One Structured Streaming query over all sources of a pipeline, started anew where it is planned for a number of
    subtasks that is not wanted any more."""

    def __init__(
        self,
        jobs: StageJobs,
        frames: Sequence[DataFrame],
        store: Store,
        trigger: str | float | None,
        name: str,
    ) -> None:
        self._jobs, self._frames, self._store, self._trigger, self._name = jobs, frames, store, trigger, name
        self._context = frames[0].sparkSession.sparkContext
        self._pool = pool_of(self._context, store)
        self._reading: _Reading | None = None
        self._id: str | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def start(
        self,
        offer: Callable[[OfferedBatch], None],
        on_end: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        demand: Demand,
    ) -> None:
        """Starts reading. `offer` gets each micro-batch; exactly one of `on_end` and `on_failure` is called later."""
        reading = self._read(offer, demand)
        if reading is None:
            on_end()
            return

        def watch() -> None:
            current: _Reading | None = reading
            try:
                while current is not None:
                    _await_end(current, self._context)
                    current = self._read(offer, demand) if current.stopping.is_set() else None
                self._require_end()
            except BaseException as error:
                on_failure(explained(error, self._context))
            else:
                on_end()

        threading.Thread(target=watch, name="penstock-feed", daemon=True).start()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            reading = self._reading
        if reading is not None:
            _stop(reading)

    def _require_end(self) -> None:
        """Raises: `SourceStopped`, `StageFailed`, when Spark's streaming query has ended although the engine did not
        ask for it.

        A stop while the query looks for the last available rows goes unnoticed: Spark ends the query in the same way
        when it finds none.
        """
        if self._stopped:
            return
        if is_stopped(self._context):  # it ends its streaming queries as if they had been stopped
            raise session_stopped()
        if self._trigger != "available_now" or not all_committed(self._store):
            raise SourceStopped

    def state(self) -> SourceState | None:
        reading = self._reading
        if reading is None:
            return None
        if reading.in_hand.is_set():
            return SourceState(None)
        with suppress(Exception):  # the JVM may be gone: the feed's own thread tells that
            return state_of(reading.query, self._context)
        return None

    def progress(self) -> list[SourceFigures]:
        reading = self._reading
        if reading is None:
            return []
        with suppress(Exception):  # the JVM may be gone: the feed's own thread tells that
            return source_figures(reading.query.lastProgress)
        return []

    def _read(self, offer: Callable[[OfferedBatch], None], demand: Demand) -> _Reading | None:
        """Starts a streaming query; None once the feed was stopped."""
        with self._lock:
            if self._stopped:
                return None
            self._reading = self._started(offer, demand)
            return self._reading

    def _started(self, offer: Callable[[OfferedBatch], None], demand: Demand) -> _Reading:
        log_files = QuickLogFiles(self._frames[0].sparkSession)
        plan = self._jobs.planned(demand)
        rows = self._jobs.rows_of(self._frames)
        settings = settings_for(rows.schema)
        configured = False
        in_hand = threading.Event()

        def handle(frame: DataFrame, number: int) -> None:
            in_hand.set()
            try:
                hand_over(frame, number)
            finally:
                in_hand.clear()

        def hand_over(frame: DataFrame, number: int) -> None:
            nonlocal configured
            if not configured:
                log_files.restore()
                _configure(frame, settings)
                configured = True
            if plan != self._jobs.planned(demand):
                self._end_here()
            batch_id = BatchId(number)
            batch = OfferedBatch(
                batch_id=batch_id,
                content=plan.offered(frame),
                offsets_digest=self._offsets_digest(batch_id),
                query_id=self._query_id(),
            )
            try:
                offer(batch)
            except Exception:
                self._await_stop()

        writer = plan.applied_to(rows).writeStream.foreachBatch(handle)
        writer = writer.option("checkpointLocation", f"{hadoop_url(self._store.url)}/{SOURCE}")
        match self._trigger:
            case None:
                pass
            case "available_now":
                writer = writer.trigger(availableNow=True)
            case interval:
                writer = writer.trigger(processingTime=f"{int(float(interval) * 1000)} milliseconds")
        if self._store.url.startswith("file:"):  # elsewhere a rename may be a copy: Spark and the user decide
            log_files.choose()
        try:
            with connector(self._store.url), in_pool(self._context, self._pool):
                query = start_named(writer, self._name, self._frames[0].sparkSession)
                return _Reading(query, log_files, in_hand)
        except BaseException:
            log_files.restore()
            raise

    def _end_here(self) -> NoReturn:
        """Ends the streaming query before this micro-batch; Spark hands the same one over again in the next query."""
        with self._lock:  # the query may not even have a name yet, so early are we called
            reading = self._reading
        assert reading is not None
        threading.Thread(target=_stop, args=(reading,), name="penstock-feed-stop", daemon=True).start()
        self._await_stop()

    def _await_stop(self) -> NoReturn:
        """Waits until Spark interrupts the handler: the loop did not take its micro-batch and stops the query."""
        with self._lock:
            reading = self._reading
        assert reading is not None
        reading.parked.set()
        reading.stopping.wait()
        end_interrupted(self._context)

    @property
    def names_sources(self) -> bool:
        return False

    def remembers(self, batch_id: BatchId, offsets_digest: str | None) -> bool:
        found = self._offsets_digest(batch_id)
        return found is not None and offsets_digest in (None, found)

    def rewind(self, batch_id: BatchId | None) -> None:
        rewind_source(self._store, batch_id)

    def _offsets_digest(self, batch_id: BatchId) -> str | None:
        """Spark writes a batch's offsets before it hands the batch over, and replays it from the same file."""
        try:
            return hashlib.sha256(self._store.read(offsets_path(batch_id))).hexdigest()[:32]
        except MissingFile:
            return None

    def _query_id(self) -> str | None:
        """Spark writes it once, before its first micro-batch."""
        if self._id is None:
            with suppress(MissingFile, ValueError, KeyError):
                self._id = str(json.loads(self._store.read(SOURCE_METADATA))["id"])
        return self._id


def _stop(reading: _Reading) -> None:
    reading.stopping.set()
    stop_quietly(reading.query, reading.parked)


def _await_end(reading: _Reading, context: SparkContext) -> None:
    """Raises: what ended the streaming query, if it was not stopped."""
    try:
        await_end(reading.query, context)
    finally:
        with suppress(Exception):  # the JVM may be gone; waiting threads must still learn of the end
            reading.log_files.restore()


def _configure(frame: DataFrame, settings: Mapping[str, str]) -> None:
    """The micro-batch's session is the query's own copy, so the user's session stays as it was."""
    for key, value in settings.items():
        frame.sparkSession.conf.set(key, value)
