"""The streaming query that feeds the epoch loop: Structured Streaming reads the sources and keeps their offsets."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from penstock.engine.cluster import OfferedBatch
from penstock.errors import MissingFile
from penstock.protocol.ids import BatchId
from penstock.spark.exchange import SourceLayout
from penstock.store.base import Store

SOURCE_FOLDER = "source"
QUERY_SETTINGS = {
    # One partition must stay one subtask.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.session.timeZone": "UTC",
}


class SparkFeed:
    """One Structured Streaming query over all sources of a pipeline."""

    def __init__(
        self, layout: SourceLayout, frames: Sequence[DataFrame], store: Store, trigger: str | float | None
    ) -> None:
        self._layout, self._frames, self._store, self._trigger = layout, frames, store, trigger
        self._query: StreamingQuery | None = None
        self._configured = False

    def start(
        self,
        offer: Callable[[OfferedBatch], None],
        on_end: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Starts reading. `offer` gets each micro-batch; exactly one of `on_end` and `on_failure` is called later."""

        def handle(frame: DataFrame, batch_id: int) -> None:
            self._configure(frame)
            offer(
                OfferedBatch(
                    batch_id=BatchId(batch_id),
                    frame=frame,
                    offsets_digest=self._offsets_digest(batch_id),
                    query_id=self._query_id(),
                )
            )

        writer = self._layout.union(self._frames).writeStream.foreachBatch(handle)
        writer = writer.option("checkpointLocation", f"{self._store.url}/{SOURCE_FOLDER}")
        match self._trigger:
            case None:
                pass
            case "available_now":
                writer = writer.trigger(availableNow=True)
            case interval:
                writer = writer.trigger(processingTime=f"{int(float(interval) * 1000)} milliseconds")
        query = self._query = writer.start()
        threading.Thread(
            target=self._watch, args=(query, on_end, on_failure), name="penstock-feed", daemon=True
        ).start()

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()

    def rewind(self, batch_id: int | None) -> None:
        """Spark plans the next micro-batch from the newest offsets and commits that it finds."""
        last = -1 if batch_id is None else batch_id
        logs = [entry.path for log in ("offsets", "commits") for entry in self._store.list(f"{SOURCE_FOLDER}/{log}")]
        self._store.delete([path for path in logs if (number := _number(path)) is not None and number > last])

    @staticmethod
    def _watch(query: StreamingQuery, on_end: Callable[[], None], on_failure: Callable[[BaseException], None]) -> None:
        try:
            query.awaitTermination()
        except BaseException as error:
            on_failure(error)
        else:
            on_end()

    def _configure(self, frame: DataFrame) -> None:
        """The micro-batch's session is the query's own copy, so the user's session stays as it was."""
        if not self._configured:
            for key, value in QUERY_SETTINGS.items():
                frame.sparkSession.conf.set(key, value)
            self._configured = True

    def _offsets_digest(self, batch_id: int) -> str | None:
        """Spark writes a batch's offsets before it hands the batch over, and replays it from the same file."""
        try:
            return hashlib.sha256(self._store.read(f"{SOURCE_FOLDER}/offsets/{batch_id}")).hexdigest()[:32]
        except MissingFile:
            return None

    def _query_id(self) -> str | None:
        try:
            return str(json.loads(self._store.read(f"{SOURCE_FOLDER}/metadata"))["id"])
        except (MissingFile, ValueError, KeyError):
            return None


def _number(path: str) -> int | None:
    """The batch id of a log entry, or of the checksum file that Hadoop keeps beside it."""
    name = path.rpartition("/")[2].removeprefix(".").removesuffix(".crc")
    return int(name) if name.isdigit() else None
