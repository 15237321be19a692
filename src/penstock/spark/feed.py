"""The streaming query that feeds the epoch loop: Structured Streaming reads the sources and keeps their offsets."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from penstock.engine.cluster import OfferedBatch
from penstock.engine.sourcelog import SOURCE_FOLDER, rewind_source
from penstock.errors import MissingFile
from penstock.protocol.ids import BatchId
from penstock.spark.batches import batch_settings
from penstock.spark.exchange import SourceLayout
from penstock.spark.failures import explained
from penstock.spark.hadoop import connector, hadoop_url
from penstock.spark.logfiles import QuickLogFiles
from penstock.store.base import Store

# Between our call to stop the streaming query and Spark's interruption of its thread; a busy machine takes its time.
INTERRUPTION_MS_MAX = 10_000
QUERY_SETTINGS = {
    # One partition must stay one subtask.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
}


class Interrupted(Exception):
    """Ends the handler of a micro-batch that was not taken, in words by which Spark knows that its own `stop` ended it.

    Any other exception is a failure to Spark, and a JVM stack trace in the user's terminal.
    """

    def __str__(self) -> str:
        return "py4j.protocol.Py4JJavaError: An error occurred while calling sleep: java.lang.InterruptedException"


def _worth_logging(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], Interrupted))


logging.getLogger("py4j.clientserver").addFilter(_worth_logging)


class SparkFeed:
    """One Structured Streaming query over all sources of a pipeline."""

    def __init__(
        self, layout: SourceLayout, frames: Sequence[DataFrame], store: Store, trigger: str | float | None
    ) -> None:
        self._layout, self._frames, self._store, self._trigger = layout, frames, store, trigger
        self._query: StreamingQuery | None = None
        self._id: str | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def start(
        self,
        offer: Callable[[OfferedBatch], None],
        on_end: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Starts reading. `offer` gets each micro-batch; exactly one of `on_end` and `on_failure` is called later."""
        log_files = QuickLogFiles(self._frames[0].sparkSession)
        configured = False

        def handle(frame: DataFrame, batch_id: int) -> None:
            nonlocal configured
            if not configured:
                log_files.restore()
                _configure(frame)
                configured = True
            batch = OfferedBatch(
                batch_id=BatchId(batch_id),
                frame=frame,
                offsets_digest=self._offsets_digest(batch_id),
                query_id=self._query_id(),
            )
            try:
                offer(batch)
            except Exception:
                self._await_interruption(frame)
                raise Interrupted from None

        writer = self._layout.union(self._frames).writeStream.foreachBatch(handle)
        writer = writer.option("checkpointLocation", f"{hadoop_url(self._store.url)}/{SOURCE_FOLDER}")
        match self._trigger:
            case None:
                pass
            case "available_now":
                writer = writer.trigger(availableNow=True)
            case interval:
                writer = writer.trigger(processingTime=f"{int(float(interval) * 1000)} milliseconds")
        with self._lock:
            if self._stopping.is_set():
                on_end()
                return
            if self._store.url.startswith("file:"):  # elsewhere a rename may be a copy: Spark and the user decide
                log_files.choose()
            try:
                with connector(self._store.url):
                    query = self._query = writer.start()
            except BaseException:
                log_files.restore()
                raise
        threading.Thread(
            target=self._watch, args=(query, log_files, on_end, on_failure), name="penstock-feed", daemon=True
        ).start()

    def stop(self) -> None:
        with self._lock:
            self._stopping.set()
        if self._query is not None:
            self._query.stop()

    def _await_interruption(self, frame: DataFrame) -> None:
        """Waits until Spark interrupts the handler: the query that did not take its micro-batch stops its feed."""
        self._stopping.wait()
        jvm = frame.sparkSession.sparkContext._jvm  # noqa: SLF001 - only inside the JVM can the thread be interrupted
        assert jvm is not None
        with suppress(Py4JError):
            jvm.java.lang.Thread.sleep(INTERRUPTION_MS_MAX)

    def remembers(self, batch_id: int, offsets_digest: str | None) -> bool:
        found = self._offsets_digest(batch_id)
        return found is not None and offsets_digest in (None, found)

    def rewind(self, batch_id: int | None) -> None:
        rewind_source(self._store, batch_id)

    @staticmethod
    def _watch(
        query: StreamingQuery,
        log_files: QuickLogFiles,
        on_end: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        failure: BaseException | None = None
        try:
            query.awaitTermination()
        except BaseException as error:
            failure = error
        with suppress(Exception):  # the JVM may be gone; whoever waits must hear of the end all the same
            log_files.restore()
        if failure is not None:
            on_failure(explained(failure))
        else:
            on_end()

    def _offsets_digest(self, batch_id: int) -> str | None:
        """Spark writes a batch's offsets before it hands the batch over, and replays it from the same file."""
        try:
            return hashlib.sha256(self._store.read(f"{SOURCE_FOLDER}/offsets/{batch_id}")).hexdigest()[:32]
        except MissingFile:
            return None

    def _query_id(self) -> str | None:
        """Spark writes it once, before its first micro-batch."""
        if self._id is None:
            with suppress(MissingFile, ValueError, KeyError):
                self._id = str(json.loads(self._store.read(f"{SOURCE_FOLDER}/metadata"))["id"])
        return self._id


def _configure(frame: DataFrame) -> None:
    """The micro-batch's session is the query's own copy, so the user's session stays as it was."""
    for key, value in {**QUERY_SETTINGS, **batch_settings(frame.schema)}.items():
        frame.sparkSession.conf.set(key, value)
