"""The streaming query that feeds the epoch loop: Structured Streaming reads the sources and keeps their offsets."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.engine.cluster import OfferedBatch
from penstock.engine.feed import Demand, SourceFigures, SourceStopped
from penstock.engine.naming import Logged, Naming, Placed
from penstock.engine.sourcelog import all_committed, has_entries, read_tail, rewind_source
from penstock.errors import MissingFile
from penstock.protocol.ids import BatchId
from penstock.protocol.layout import SOURCE, SOURCE_METADATA, offsets_path
from penstock.protocol.manifest import SourcePosition
from penstock.protocol.silence import SourceState
from penstock.protocol.sourcelog import digest
from penstock.protocol.sourceloss import SourceLoss
from penstock.spark.failures import explained, session_stopped
from penstock.spark.liveplan import LivePlan
from penstock.spark.pools import in_pool, pool_of
from penstock.spark.quirks.callbackthreads import CallbackThread
from penstock.spark.quirks.exchangecounts import executed_stream_plan
from penstock.spark.quirks.hadoop import connector, hadoop_url
from penstock.spark.quirks.interruption import end_interrupted
from penstock.spark.quirks.kafkaframes import reads_kafka
from penstock.spark.quirks.kafkaloss import losses_of
from penstock.spark.quirks.logfiles import QuickLogFiles
from penstock.spark.quirks.outliving import await_end
from penstock.spark.quirks.querynames import start_named
from penstock.spark.quirks.quietend import QuietEnd
from penstock.spark.quirks.quietstop import stop_quietly
from penstock.spark.quirks.ranout import stopped_early
from penstock.spark.quirks.sourcenames import names_in_log, with_names
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
    plan: LivePlan
    callbacks: CallbackThread
    in_hand: threading.Event = field(default_factory=threading.Event)
    """Its handler has a micro-batch."""
    stopping: threading.Event = field(default_factory=threading.Event)
    parked: threading.Event = field(default_factory=threading.Event)
    """Its handler has a micro-batch that the loop does not take, and waits for the end."""
    quiet_end: QuietEnd | None = None


class SparkFeed:
    """One Structured Streaming query over all sources of a pipeline. It is planned for the number of subtasks that is
    wanted; where its plan cannot be changed while it runs, it is started anew."""

    def __init__(
        self,
        jobs: StageJobs,
        frames: Sequence[DataFrame],
        store: Store,
        trigger: str | float | None,
        name: str,
        naming: Naming | None = None,
    ) -> None:
        self._jobs, self._frames, self._store, self._trigger, self._name = jobs, frames, store, trigger, name
        self.naming = naming or Placed("")
        self._context = frames[0].sparkSession.sparkContext
        self._pool = pool_of(self._context, store)
        self._reading: _Reading | None = None
        self._id: str | None = None
        self._lock = threading.Lock()
        self._stopped = False
        self._tell_loss: Callable[[SourceLoss], None] | None = None
        self._reads_kafka = any(reads_kafka(frame) for frame in frames)

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

    def replan(self) -> None:
        """In a thread of its own: it takes some calls into the JVM, and its caller may be the loop."""
        reading = self._reading
        if reading is not None:
            threading.Thread(target=_follow, args=(reading.plan,), name="penstock-feed-plan", daemon=True).start()

    def _require_end(self) -> None:
        """Raises: `SourceStopped`, `StageFailed`, when Spark's streaming query has ended although the engine did not
        ask for it."""
        if self._stopped:
            return
        if is_stopped(self._context):  # it ends its streaming queries as if they had been stopped
            raise session_stopped()
        reading = self._reading
        assert reading is not None
        if self._trigger != "available_now" or not all_committed(self._store) or stopped_early(reading.query):
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

    def tell_losses(self, tell: Callable[[SourceLoss], None]) -> None:
        self._tell_loss = tell

    def _look_for_losses(self) -> None:
        """In the plan of the micro-batch that has just been processed."""
        if not self._reads_kafka or self._tell_loss is None:
            return
        with suppress(Exception):  # the JVM may be gone: the feed's own thread tells that
            for loss in losses_of(executed_stream_plan(self._frames[0].sparkSession, self._query_id())):
                self._tell_loss(loss)

    def _read(self, offer: Callable[[OfferedBatch], None], demand: Demand) -> _Reading | None:
        """Starts a streaming query; None once the feed was stopped."""
        with self._lock:
            if self._stopped:
                return None
            self._reading = self._started(offer, demand)
            return self._reading

    def _started(self, offer: Callable[[OfferedBatch], None], demand: Demand) -> _Reading:
        session = self._frames[0].sparkSession
        log_files = QuickLogFiles(session)
        plan = self._jobs.planned(demand)
        live = LivePlan(session, plan, lambda: self._jobs.planned(demand))
        callbacks = CallbackThread(self._context)
        rows = self._rows(demand.source_names)
        settings = settings_for(rows.schema)
        configured = False
        in_hand = threading.Event()

        def handle(frame: DataFrame, number: int) -> None:
            in_hand.set()
            try:
                with callbacks.handling():
                    hand_over(frame, number)
            finally:
                live.handed_back()
                in_hand.clear()

        def hand_over(frame: DataFrame, number: int) -> None:
            nonlocal configured
            if not configured:
                log_files.restore()
                _configure(frame, settings)
                configured = True
            planned = live.of(frame)
            if planned is None:
                self._end_here()
            batch_id = BatchId(number)
            batch = OfferedBatch(
                batch_id=batch_id,
                content=planned.offered(frame),
                offsets_digest=self._offsets_digest(batch_id),
                query_id=self._query_id(),
            )
            try:
                offer(batch)
            except Exception:
                self._await_stop()
            self._look_for_losses()

        writer = self._writer(plan.applied_to(rows), handle)
        if self._store.url.startswith("file:"):  # elsewhere a rename may be a copy: Spark and the user decide
            log_files.choose()
        try:
            query = live.query = self._start(writer, named=demand.source_names is not None)
            return _Reading(query, log_files, live, callbacks, in_hand, quiet_end=QuietEnd(self._context, query))
        except BaseException:
            log_files.restore()
            raise

    def _writer(self, stream: DataFrame, handle: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        writer = stream.writeStream.foreachBatch(handle)
        writer = writer.option("checkpointLocation", f"{hadoop_url(self._store.url)}/{SOURCE}")
        match self._trigger:
            case None:
                return writer
            case "available_now":
                return writer.trigger(availableNow=True)
            case interval:
                return writer.trigger(processingTime=f"{int(float(interval) * 1000)} milliseconds")

    def _start(self, writer: DataStreamWriter, *, named: bool) -> StreamingQuery:
        session = self._frames[0].sparkSession
        naming = names_in_log(session, new_log=named and not has_entries(self._store))
        with connector(self._store.url), in_pool(self._context, self._pool), naming:
            return start_named(writer, self._name, session)

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

    def _rows(self, names: Mapping[str, Sequence[str]] | None) -> DataFrame:
        """The rows of all sources, whose readers have names where Spark's log is to have them."""
        if names is None:
            return self._jobs.rows_of(self._frames)
        assert isinstance(self.naming, Logged), "only what can be named has names"
        named = zip(self._frames, self.naming.counts, strict=True)
        return self._jobs.rows_of([with_names(frame, names[source]) for frame, source in named])

    def remembers(self, batch_id: BatchId, offsets_digest: str | None) -> bool:
        return read_tail(self._store, SourcePosition(batch_id=batch_id, offsets_digest=offsets_digest)) is not None

    def rewind(self, batch_id: BatchId | None) -> None:
        rewind_source(self._store, batch_id)

    def _offsets_digest(self, batch_id: BatchId) -> str | None:
        """Spark writes a batch's offsets before it hands the batch over, and replays it from the same file."""
        try:
            return digest(self._store.read(offsets_path(batch_id)))
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


def _follow(plan: LivePlan) -> None:
    with suppress(Exception):  # the JVM may be gone: the feed's own thread tells that
        plan.follow()


def _await_end(reading: _Reading, context: SparkContext) -> None:
    """Raises: what ended the streaming query, if it was not stopped."""
    try:
        await_end(reading.query, context)
    finally:
        with suppress(Exception):  # the JVM may be gone; waiting threads must still learn of the end
            reading.log_files.restore()
        if reading.quiet_end is not None:
            reading.quiet_end.restore()
        reading.callbacks.end()


def _configure(frame: DataFrame, settings: Mapping[str, str]) -> None:
    """The micro-batch's session is the query's own copy, so the user's session stays as it was."""
    for key, value in settings.items():
        frame.sparkSession.conf.set(key, value)
