"""How long a row takes: from the moment at which the source has it to a published checkpoint, and into a Paimon table.

1,000 rows a second come over a socket, whose Spark source holds them in memory: what it takes is next to nothing, as
with Kafka. Rows are numbered by their order, so the rows of an epoch tell when each of them was sent.
"""

from __future__ import annotations

import bisect
import itertools
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock as pen
from benchmarks.recovery import Timed
from benchmarks.verdict import Verdicts, percentile
from penstock.events import Committed, EpochPublished, Event
from penstock.sinks.paimon.read import read_table

ROWS_PER_S = 1_000
TICK_S = 0.005
KEYS = 500
WARM_UP_EPOCHS = 60
MEASURED_S = 30.0
PUBLISHED_P50_MS, PUBLISHED_P99_MS, VISIBLE_P99_MS = 150, 250, 400


@dataclass(slots=True)
class Rows:
    """Sends rows at a steady rate, and notes when."""

    sent_s: list[float] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def served(self) -> Iterator[int]:
        """Yields the port."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            thread = threading.Thread(target=self._serve, args=(server,), daemon=True)
            thread.start()
            try:
                yield server.getsockname()[1]
            finally:
                self._stop.set()
                thread.join()

    def _serve(self, server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, suppress(ConnectionError):  # Spark hangs up when the query stops
            begun = time.monotonic()
            while not self._stop.wait(TICK_S):
                now = time.monotonic()
                first, last = len(self.sent_s), int((now - begun) * ROWS_PER_S)
                self.sent_s += [now] * (last - first)
                connection.sendall(b"".join(b"%d\n" % number for number in range(first, last)))


@dataclass(slots=True)
class Latencies:
    """Listens, and notes until which row each checkpoint goes, and when it was published and committed."""

    published: Timed = field(default_factory=lambda: Timed(10**9))
    rows: dict[int, int] = field(default_factory=dict)
    published_s: list[tuple[float, int]] = field(default_factory=list)
    visible_s: list[tuple[float, int]] = field(default_factory=list)
    epochs: list[EpochPublished] = field(default_factory=list)
    _total: int = 0

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        self.published(event)
        if isinstance(event, EpochPublished):
            self._total += event.rows_in
            self.rows[event.checkpoint] = self._total
            self.published_s.append((now, self._total - event.rows_in_flight))
            self.epochs.append(event)
        elif isinstance(event, Committed):
            self.visible_s.append((now, self.rows.get(event.last, 0)))

    def of(self, moments: list[tuple[float, int]], sent_s: list[float], since_s: float) -> list[float]:
        """In milliseconds, of all rows that were sent since a moment and arrived."""
        first = bisect.bisect_left(sent_s, since_s)
        result, done = [], 0
        for moment, until in moments:
            result += [1000 * (moment - sent) for sent in sent_s[max(first, done) : until]]
            done = max(done, until)
        return result


def run(spark: SparkSession, verdicts: Verdicts) -> None:
    rows, seen = Rows(), Latencies()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, rows.served() as port:
        lines = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", port).load()
        numbers = lines.select((F.col("value").cast("long") % KEYS).alias("key"))
        totals = pen.read(numbers, name="input").key_by("key").aggregate(n=pen.count(), name="totals")
        table = pen.Paimon(f"{folder}/lake", "bench.totals")
        query = totals.write(table).start(f"{folder}/checkpoint", epoch="100 ms", parallelism=2, on_event=seen)
        seen.published.wait(query, WARM_UP_EPOCHS)
        since_s = time.monotonic()
        seen.published.wait_until(query, since_s + MEASURED_S)
        query.stop()
        counted = read_table(f"{folder}/lake", "bench.totals").num_rows
    assert counted, "nothing is in the table"
    _judge(verdicts, rows.sent_s, seen, since_s)


def _judge(verdicts: Verdicts, sent_s: list[float], seen: Latencies, since_s: float) -> None:
    published_ms = seen.of(seen.published_s, sent_s, since_s)
    visible_ms = seen.of(seen.visible_s, sent_s, since_s)
    moments = [moment for moment, _ in seen.published_s if moment >= since_s]
    gaps_ms = [1000 * (after - before) for before, after in itertools.pairwise(moments)]
    epochs_ms = [1000 * epoch.duration_s for epoch in seen.epochs[-len(gaps_ms) :]]
    verdicts.note(
        f"{len(published_ms):,} rows; {len(gaps_ms)} epochs, p50 {percentile(epochs_ms, 0.5):.0f} ms each, one every "
        f"{percentile(gaps_ms, 0.5):.0f} ms (p99 {percentile(gaps_ms, 0.99):.0f} ms)"
    )
    verdicts.note(f"visible p50 {percentile(visible_ms, 0.5):.0f} ms")
    verdicts.at_most("published p50", percentile(published_ms, 0.5), PUBLISHED_P50_MS, " ms")
    verdicts.at_most("published p99", percentile(published_ms, 0.99), PUBLISHED_P99_MS, " ms")
    verdicts.at_most("visible in the table p99", percentile(visible_ms, 0.99), VISIBLE_P99_MS, " ms")
