"""A cluster and a feed inside this process, for tests of the engine and of pipelines.

Only Spark is replaced: batches are Arrow tables, hashed and cut by the same rules. Everything else is the real code.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

import msgspec
import numpy as np
import pyarrow as pa

from penstock.api.checks import check_columns
from penstock.api.outputs import Output
from penstock.api.read import source_node
from penstock.api.stream import Stream
from penstock.engine.cluster import OfferedBatch, StageJob
from penstock.engine.feed import Demand
from penstock.engine.history import OnEvent, listeners_of
from penstock.engine.migrating import MigrationWork
from penstock.engine.naming import ByName, Naming
from penstock.engine.options import Config, Options
from penstock.engine.query import Query
from penstock.engine.start import Surroundings, start_query
from penstock.graph.compiler import compile_pipeline
from penstock.graph.stages import Edge
from penstock.hashing import hash_columns
from penstock.inflight.delivery import CountedStream
from penstock.inflight.lanes import Dealer, spread_lanes
from penstock.inflight.segment import HASH_COLUMN
from penstock.plain import plain_errors
from penstock.protocol.ids import BatchId
from penstock.protocol.keygroups import groups_of
from penstock.protocol.plan import StagePlan
from penstock.protocol.report import SubtaskReport
from penstock.protocol.silence import SourceState
from penstock.records import MigratedPart
from penstock.sinks.base import Sink
from penstock.store import open_store
from penstock.store.base import Store
from penstock.subtask.attempt import Limits, run_subtask
from penstock.subtask.migrate import migrate_part
from penstock.testing.batch import TablesBatch, tables_of
from penstock.testing.mixing import live_batches, live_inputs, rows_in


@plain_errors
def stream_of(schema: pa.Schema, name: str = "source", **event_time: Any) -> Stream:
    """A stream whose rows will come from an `InlineFeed`; event time as in `penstock.read`.

    Raises: `PipelineError`, `ConfigError`.
    """
    check_columns(schema, f"source {name}")
    return Stream(source_node(name, schema, None, **event_time))


@dataclass(slots=True)
class InlineCluster:
    """Runs subtasks one after another. `before_job` and `rewrite` let a test interfere."""

    store: Store
    limits: Limits
    clock: Callable[[], float]
    slots: int = 2
    partition_by: str | None = None
    """The column with the partition of the source; without it there is one partition."""
    before_job: Callable[[StageJob], None] = lambda _: None
    rewrite: Callable[[list[SubtaskReport]], list[SubtaskReport]] = lambda reports: reports
    seed: int = 0
    """Decides the order in which rows of several sources come."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set by `cancel`, so that a test's function that hangs can end."""
    _attempts: Iterator[int] = field(default_factory=itertools.count)
    _handed_over: int | None = None

    def run(self, job: StageJob) -> list[SubtaskReport]:
        self.before_job(job)
        self._handed_over = rows_in(job)
        reports = [self._run_one(job, subtask.subtask) for subtask in job.plan.launched()]
        return self.rewrite([msgspec.json.decode(msgspec.json.encode(r), type=SubtaskReport) for r in reports])

    def handed_over(self) -> int | None:
        return self._handed_over

    def cancel(self) -> None:
        self.cancelled.set()

    def activity(self) -> str:
        return "one subtask after another"

    def _run_one(self, job: StageJob, subtask: int) -> SubtaskReport:
        attempt, edges, stream = str(next(self._attempts)), job.stage.source_inputs, None
        if job.plan.live and job.batch is not None:
            tables = tables_of(job.batch)
            rows = [rows_of(tables[edge.producer], edge, job.plan, subtask, self.partition_by) for edge in edges]
            batches = live_batches(rows, random.Random(f"{self.seed}/{job.batch.batch_id}/{attempt}"))
            stream = CountedStream(iter(batches), [edge.name for edge in edges])
        report = run_subtask(
            job.stage,
            job.plan,
            subtask,
            store=self.store,
            limits=self.limits,
            attempt=attempt,
            live=None if stream is None else live_inputs(stream, edges, self.limits.prefetch_bytes),
            clock=self.clock,
        )
        return report if stream is None else stream.stamped(report)


def rows_of(
    table: pa.Table, edge: Edge, plan: StagePlan, subtask: int, partition_by: str | None = None
) -> pa.RecordBatch:
    """What Spark's shuffle would deliver to one subtask."""
    table = table.combine_chunks()
    if edge.keys:
        columns = [table.column(key).combine_chunks() for key in edge.keys]
        hashes = hash_columns([c.chunk(0) if isinstance(c, pa.ChunkedArray) else c for c in columns])
    elif edge.rebalanced:
        hashes = Dealer(plan.max_parallelism).deal(table.num_rows)
    elif partition_by is not None and partition_by in table.schema.names:
        partitions = table.column(partition_by).to_numpy() % plan.max_parallelism
        hashes = spread_lanes(plan.max_parallelism)[partitions]
    else:
        hashes = np.zeros(table.num_rows, dtype=np.int64)
    mine = groups_of(hashes, plan.max_parallelism) * plan.parallelism // plan.max_parallelism == subtask
    mine_only = table.append_column(HASH_COLUMN, pa.array(hashes)).filter(pa.array(mine)).combine_chunks()
    batches = mine_only.to_batches()
    assert len(batches) <= 1
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=mine_only.schema)


def migrate_here(work: MigrationWork) -> list[MigratedPart]:
    """All parts of a migration in this process."""
    return [migrate_part(task, work.function, work.origin, work.target) for task in work.tasks]


class InlineFeed:
    """Offers given tables as micro-batches, from the one after the last that was accepted."""

    def __init__(self, batches: Sequence[dict[str, pa.Table]], accepted: list[int]) -> None:
        self._batches, self._accepted = batches, accepted
        self._stopped = threading.Event()

    def start(
        self,
        offer: Callable[[OfferedBatch], None],
        on_end: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        demand: Demand,
    ) -> None:
        del demand  # nothing is planned ahead
        threading.Thread(target=self._run, args=(offer, on_end, on_failure), daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def before_batch(self, number: int) -> None:
        """For a test whose source takes its time."""

    def state(self) -> SourceState | None:
        return SourceState(None)

    @property
    def naming(self) -> Naming:
        return ByName()

    def remembers(self, batch_id: BatchId, offsets_digest: str | None) -> bool:  # noqa: ARG002 - numbers never change
        return True

    def rewind(self, batch_id: BatchId | None) -> None:
        last = -1 if batch_id is None else batch_id
        self._accepted[:] = [number for number in self._accepted if number <= last]

    def _run(
        self,
        offer: Callable[[OfferedBatch], None],
        on_end: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        try:
            for number in range(len(self._accepted), len(self._batches)):
                self.before_batch(number)
                if self._stopped.is_set():
                    break
                tables = TablesBatch(self._batches[number])
                offer(OfferedBatch(BatchId(number), tables, f"offsets-{number}", "inline"))
                self._accepted.append(number)
        except BaseException as error:
            on_failure(error)
        else:
            on_end()


@dataclass(slots=True)
class InlineRun:
    """Starts queries over the same batches again and again, as restarts of one job would."""

    batches: Sequence[dict[str, pa.Table]]
    clock: Callable[[], float]
    accepted: list[int] = field(default_factory=list)
    cluster: InlineCluster | None = None
    prepare: Callable[[InlineCluster], None] = lambda _: None
    open_store: Callable[[str], Store] = open_store
    wall_us: Callable[[], int] = lambda: time.time_ns() // 1000
    driver_clock: Callable[[], float] = time.monotonic
    """The driver's clock; `clock` is that of the subtasks."""

    def start(
        self,
        *outputs: Output,
        checkpoint: str | os.PathLike[str],
        on_event: OnEvent = (),
        dead_letters: Sink | None = None,
        **options: Unpack[Options],
    ) -> Query:
        config = Config.of(checkpoint, **options)
        limits = Limits(segment_bytes=config.segment_bytes, prefetch_bytes=config.prefetch_bytes)

        def cluster(store: Store, name: str) -> InlineCluster:
            del name
            self.cluster = InlineCluster(store, limits, self.clock)
            self.prepare(self.cluster)
            return self.cluster

        pipeline = compile_pipeline([output.node for output in outputs], dead_letters)
        surroundings = Surroundings(
            cluster,
            lambda _: InlineFeed(self.batches, self.accepted),
            store=self.open_store,
            clock=self.driver_clock,
            now_us=self.wall_us,
            migrate=migrate_here,
        )
        return start_query(pipeline, config, surroundings, listeners_of(on_event))
