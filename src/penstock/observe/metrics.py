"""A query's events as Prometheus metrics. Names follow Prometheus's rules: base units, counters end in ``_total``.

Needs the package prometheus-client (``pip install 'penstock[metrics]'``).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from penstock.observe.condense import seconds_of
from penstock.observe.events import (
    Alive,
    CommitRetried,
    CommitSlow,
    Committed,
    EpochFailed,
    EpochPublished,
    Event,
    QueryStarted,
    QueryStopped,
    Rescaled,
    SourceLost,
    SourceSlow,
    StorageRetried,
)
from penstock.observe.views import LATELY, backlog_s, phase_seconds
from penstock.protocol.ids import CheckpointId

EPOCH_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0)
DELAY_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)


class Metrics:
    """A listener: feed it with events, and ask for `exposition`."""

    def __init__(self, query: str = "") -> None:
        self.registry = CollectorRegistry()
        self._lock = threading.Lock()
        self._query, self._recent = query, deque[EpochPublished](maxlen=LATELY)
        self._counted: dict[str, int] = {}
        self._newest: CheckpointId | None = None
        self._committed: dict[str, CheckpointId] = {}
        self._make()

    def _make(self) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"penstock_{name}", text, ("query", *labels), registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"penstock_{name}", text, ("query", *labels), registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"penstock_{name}", text, ("query", *labels), buckets=buckets, registry=self.registry)

        self.info = gauge("query_info", "Always 1; labels say which version runs", "version", "generation")
        self.up = gauge("up", "1 while the query runs, 0 after its end")
        self.epochs = counter("epochs", "Epochs that ended in a checkpoint", "kind")
        self.epoch_failures = counter("epoch_failures", "Attempts at an epoch that published nothing", "code")
        self.rows_in = counter("rows_in", "Rows taken from sources")
        self.rows_processed = counter("rows_processed", "Rows consumed by operators at the head of a stage")
        self.rows_out = counter("rows_out", "Rows written for sinks")
        self.duration = histogram("epoch_duration_seconds", "How long epochs took", EPOCH_BUCKETS)
        self.phase = counter("epoch_phase_seconds", "Where the time of epochs went", "phase")
        self.barrier = histogram("barrier_delay_seconds", "How long after the barrier subtasks stopped", DELAY_BUCKETS)
        self.checkpoint = gauge("checkpoint_id", "The newest checkpoint")
        self.checkpoint_at = gauge("last_checkpoint_timestamp_seconds", "When the newest checkpoint was published")
        self.written = counter("checkpoint_bytes", "Bytes written by checkpoints", "kind")
        self.state_bytes = gauge("state_bytes", "Bytes of keyed state")
        self.edge_rows = counter("edge_rows", "Rows that an edge took, handed over or spilled", "edge", "what")
        self.in_flight = gauge("in_flight_rows", "Rows in flight", "edge")
        self.in_flight_bytes = gauge("in_flight_bytes", "Bytes in flight", "edge")
        self.backlog = gauge("backlog_seconds", "How long rows in flight take at the present rate", "edge")
        self.subtasks = gauge("stage_subtasks", "Subtasks of a stage", "stage")
        self.skew = gauge("stage_skew_ratio", "Rows of the busiest subtask over the mean", "stage")
        self.row_cost = gauge("stage_row_cost_seconds", "Time that one row costs", "stage")
        self.worker_memory = gauge("worker_memory_bytes", "Memory of the largest Python worker", "stage")
        self.lag = gauge("watermark_lag_seconds", "How far the watermark is behind the clock", "stage")
        self.operator = counter("operator_count", "What operators count, such as late rows", "operator", "counter")
        self.commits = counter("commits", "Commits to a table", "sink")
        self.commit_rows = counter("commit_rows", "Rows that commits made visible", "sink")
        self.commit_duration = histogram("commit_duration_seconds", "How long commits took", EPOCH_BUCKETS, "sink")
        self.commit_retries = counter("commit_retries", "Commits whose outcome was unknown", "sink")
        self.commit_slow = gauge("commit_slow", "1 while a commit exceeds commit_timeout", "sink")
        self.uncommitted = gauge("uncommitted_checkpoints", "Checkpoints published and not known to be committed")
        self.source_silent = gauge("source_silent", "1 while a source exceeds source_timeout")
        self.source_behind = gauge("source_behind_offsets", "Offsets not read yet, of the worst partition", "source")
        self.source_lost = counter("source_lost_offsets", "Offsets that the source deleted before they were read")
        self.storage_retries = counter("storage_retries", "Failures of the checkpoint's storage")
        self.rescales = counter("rescales", "Changes of a stage's parallelism", "stage")
        self.driver_memory = gauge("driver_memory_bytes", "Memory of the driver's Python process")
        self.waiting = gauge("waiting", "1 while no epoch runs because there is nothing to do")

    def __call__(self, event: Event) -> None:
        with self._lock:
            self._take(event)

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        with self._lock:
            return generate_latest(self.registry)

    def _take(self, event: Event) -> None:
        name = self._query
        match event:
            case QueryStarted():
                self._query = name = event.name
                self.info.labels(name, event.version, str(event.generation)).set(1)
                self.up.labels(name).set(1)
                self.source_silent.labels(name).set(0)
                self.storage_retries.labels(name)
                for code in ("PEN-033",):
                    self.epoch_failures.labels(name, code)
            case EpochPublished():
                self._epoch(event)
            case Committed() | CommitRetried() | CommitSlow():
                self._commit(event)
            case EpochFailed():
                self.epoch_failures.labels(name, event.code).inc()
            case SourceSlow():
                self.source_silent.labels(name).set(0 if event.answered else 1)
            case SourceLost():
                self.source_lost.labels(name).inc(event.offsets or 0)
            case StorageRetried():
                self.storage_retries.labels(name).inc()
            case Rescaled():
                self.rescales.labels(name, event.stage).inc()
            case Alive():
                self._alive(event)
            case QueryStopped():
                self.up.labels(name).set(0)
            case _:
                pass

    def _epoch(self, event: EpochPublished) -> None:
        name = self._query
        self.epochs.labels(name, event.kind).inc()
        self.checkpoint.labels(name).set(event.checkpoint)
        self.checkpoint_at.labels(name).set(seconds_of(event.at) or 0.0)
        self.state_bytes.labels(name).set(event.state_bytes)
        self.uncommitted.labels(name).set(event.uncommitted)
        self._newest = event.checkpoint
        self._count(event.counters)
        for stage, count in event.parallelism.items():
            self.subtasks.labels(name, stage).set(count)
        if event.kind == "takeover":
            return
        self._recent.append(event)
        self.waiting.labels(name).set(0)
        self.rows_in.labels(name).inc(event.rows_in)
        self.rows_processed.labels(name).inc(event.rows_processed)
        self.rows_out.labels(name).inc(event.rows_out)
        self.duration.labels(name).observe(max(0.0, event.duration_s))
        self.barrier.labels(name).observe(max(0.0, event.barrier_delay_s))
        for phase, seconds in phase_seconds(event).items():
            self.phase.labels(name, phase).inc(max(0.0, seconds))
        for kind in ("segments", "state", "manifest"):
            self.written.labels(name, kind).inc(getattr(event.bytes_written, kind))
        self._figures(event)

    def _figures(self, event: EpochPublished) -> None:
        name = self._query
        seconds = sum(epoch.duration_s for epoch in self._recent)
        for edge, figures in event.edges.items():
            self.edge_rows.labels(name, edge, "in").inc(figures.rows_in)
            self.edge_rows.labels(name, edge, "processed").inc(figures.rows_processed)
            self.edge_rows.labels(name, edge, "spilled").inc(figures.rows_spilled)
            self.in_flight.labels(name, edge).set(figures.rows_in_flight)
            self.in_flight_bytes.labels(name, edge).set(figures.bytes_in_flight)
            done = sum(epoch.edges[edge].rows_processed for epoch in self._recent if edge in epoch.edges)
            takes_s = backlog_s(figures.rows_in_flight, done / seconds if seconds > 0 else None)
            self.backlog.labels(name, edge).set(float("inf") if takes_s is None else takes_s)
        for stage, part in event.stages.items():
            self.skew.labels(name, stage).set(part.skew or 1.0)
            self.row_cost.labels(name, stage).set(part.row_cost_s or 0.0)
            self.worker_memory.labels(name, stage).set(part.memory_bytes)
        at = seconds_of(event.at)
        for stage, moment in event.watermarks.items():
            until = seconds_of(moment)
            if at is not None and until is not None:
                self.lag.labels(name, stage).set(at - until)

    def _count(self, counters: Mapping[str, int]) -> None:
        """Counters of operators are totals since the checkpoint began."""
        for counter, total in counters.items():
            operator, _, what = counter.rpartition(".")
            more = total - self._counted.get(counter, 0)
            self._counted[counter] = total
            self.operator.labels(self._query, operator, what).inc(max(0, more))

    def _commit(self, event: Committed | CommitRetried | CommitSlow) -> None:
        name, sink = self._query, event.sink
        # One that has committed nothing so far holds results back as well.
        self._committed.setdefault(sink, CheckpointId(-1))
        match event:
            case Committed():
                self.commits.labels(name, sink).inc()
                self.commit_rows.labels(name, sink).inc(event.rows)
                self.commit_slow.labels(name, sink).set(0)
                self._committed[sink] = event.last
                if self._newest is not None and min(self._committed.values()) >= self._newest:
                    self.uncommitted.labels(name).set(0)  # until the next epoch says how many there are
                if event.duration_s is not None:
                    self.commit_duration.labels(name, sink).observe(max(0.0, event.duration_s))
            case CommitRetried():
                self.commit_retries.labels(name, sink).inc()
            case CommitSlow():
                self.commit_slow.labels(name, sink).set(1)

    def _alive(self, event: Alive) -> None:
        name = self._query
        self.driver_memory.labels(name).set(event.memory_bytes)
        self.waiting.labels(name).set(0 if event.waiting_for is None else 1)
        for source in event.sources:
            if source.behind is not None:
                self.source_behind.labels(name, source.source).set(source.behind)
