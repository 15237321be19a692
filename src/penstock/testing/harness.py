"""Runs a pipeline step by step without Spark: feed rows, let time pass, crash, rescale, look at output and state.

The same planning, subtasks, files and checkpoints as in a real query, one epoch at a time, in this process.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from penstock.api.stream import Stream
from penstock.engine.checkpoints import Checkpoints
from penstock.engine.cluster import JobFailed, OfferedBatch, StageJob
from penstock.engine.epochs import EpochResult, EpochRunner
from penstock.engine.loop import FLUSHES_MAX
from penstock.graph.compiler import compile_pipeline
from penstock.graph.nodes import SinkNode
from penstock.operators.process.timers import micros_of
from penstock.operators.values.convert import arrow_values
from penstock.plain import plain_methods
from penstock.protocol.ids import BatchId, Generation
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.manifest import Manifest
from penstock.protocol.recover import first_manifest
from penstock.protocol.report import SubtaskReport
from penstock.protocol.takeover import takeover_manifest
from penstock.state.keyed import KeyedState
from penstock.store.memory import MemoryStore
from penstock.subtask.attempt import Limits
from penstock.testing.batch import TablesBatch
from penstock.testing.inline import InlineCluster
from penstock.testing.tables import Memory
from penstock.units import parse_duration

Rows: TypeAlias = "pa.Table | Iterable[Mapping[str, Any]]"
_MAIN = "main"
_TICK_S = 0.005
"""How far the clock moves at each look. A step looks four times."""


@plain_methods
class Harness:
    """Runs a stream whose sources were made by `penstock.testing.stream_of`.

    >>> import pyarrow as pa, penstock as pen
    >>> from penstock.testing import Harness, stream_of
    >>> clicks = stream_of(pa.schema({"user": pa.int64()}))
    >>> harness = Harness(clicks.key_by("user").aggregate(n=pen.count()))
    >>> harness.feed([{"user": 1}, {"user": 1}])
    [{'user': 1, 'n': 2}]
    """

    def __init__(
        self,
        stream: Stream,
        *,
        parallelism: int = 2,
        max_parallelism: int = 16,
        steps: int | None = None,
        now: datetime | int = 0,
        prefetch_bytes: int = 1 << 20,
        seed: int = 0,
        partition_by: str | None = None,
        **outputs: Stream,
    ) -> None:
        """`outputs` are further streams to look at, such as side outputs. With `steps` the barrier fires about that
        many steps after a subtask has begun, so that rows stay in flight. `now` is processing time. Where several
        sources meet in one operator, `seed` decides the order in which their rows come, and about `prefetch_bytes` of
        each wait in memory. `partition_by` names a column with the partition of the source; without it there is one
        partition.

        Raises: `PenstockError`.
        """
        streams = {_MAIN: stream, **outputs}
        self._pipeline = compile_pipeline([SinkNode(name, Memory(name), part.node) for name, part in streams.items()])
        self._parallelism, self._steps, self._partition_by = parallelism, steps, partition_by
        self._now = micros_of(now)
        self._limits, self._seed = Limits(segment_bytes=1 << 20, prefetch_bytes=prefetch_bytes), seed
        self._store = MemoryStore()
        self._checkpoints = Checkpoints(self._store)
        self._batches = itertools.count()
        self._collected: dict[str, list[dict[str, Any]]] = {name: [] for name in streams}
        self._crash = False
        self._generation = 0
        manifest = first_manifest(
            identity="harness", library="", max_parallelism=max_parallelism, shape=self._pipeline.shape(), created_at=""
        )
        self._runner = self._started(manifest)

    # -- what happens --------------------------------------------------------------------------------------------

    def feed(self, rows: Rows | None = None, /, **by_source: Rows) -> list[dict[str, Any]]:
        """Runs one epoch with rows of the only source, or of several by name. Returns the rows that the stream emitted.

        Columns that a row does not have are null.

        Raises: `ValueError` for a source or a column that is not there, and for values that do not fit.
        """
        sources = {source.name: source.schema for source in self._pipeline.sources}
        if rows is not None and (by_source or len(sources) > 1):
            raise ValueError(f"rows of several sources are given by name: {', '.join(sources)}")
        for name in by_source:
            _require("source", name, sources)
        given = by_source if rows is None else dict.fromkeys(sources, rows)
        tables = {name: _table(given.get(name, ()), schema, name) for name, schema in sources.items()}
        return self._epoch(OfferedBatch(BatchId(next(self._batches)), TablesBatch(tables), "", "harness"))

    def run(self) -> list[dict[str, Any]]:
        """Runs one epoch without new rows."""
        return self._epoch(None)

    def settle(self) -> list[dict[str, Any]]:
        """Runs epochs without new rows until nothing is in flight and nothing is due."""
        emitted: list[dict[str, Any]] = []
        while self.rows_in_flight or self._runner.anything_due():
            emitted += self.run()
        return emitted

    def pass_time(self, duration: str | float | timedelta) -> list[dict[str, Any]]:
        """Lets processing time pass, then runs epochs until nothing is due."""
        self._now += round(parse_duration(duration, "pass_time") * 1e6)
        return self.settle()

    def flush(self) -> list[dict[str, Any]]:
        """Does what ``start(flush="end")`` does at the end of the input: closes all windows and sessions, emits rows
        of outer joins that found no match, fires timers in event time."""
        emitted = self.settle()
        for _ in range(FLUSHES_MAX):
            target = self._runner.flush_target()
            if target is None:
                break
            emitted += self._epoch(None, target) + self.settle()
        return emitted

    def crash(self) -> None:
        """Makes the next epoch crash before it is published. A new driver then repeats it from the last checkpoint."""
        self._crash = True

    def rescale(self, parallelism: int) -> None:
        """Changes the number of subtasks from the next epoch on."""
        self._parallelism = parallelism
        self._runner = self._started(self._runner.manifest)

    # -- what can be seen ----------------------------------------------------------------------------------------

    def output(self, name: str = _MAIN) -> list[dict[str, Any]]:
        """All rows emitted so far. Raises: `ValueError` if there is no such output."""
        _require("output", name, self._collected)
        return self._collected[name]

    def state(self, operator: str, table: str = "") -> list[dict[str, Any]]:
        """The entries of a table of state as of the last checkpoint: keys and values.

        Raises: `ValueError` if there is no such table.
        """
        name = f"{operator}/{table}" if table else operator
        manifest = self._runner.manifest
        schemas = {part.name: part.schema for stage in self._pipeline.stages for part in stage.tables}
        _require("state", name, schemas)
        schema = schemas[name]
        everything = KeyGroupRange(0, manifest.max_parallelism)
        files = manifest.state.get(name, ())
        with closing(KeyedState.open(self._store, files, everything, schema, manifest.max_parallelism)) as state:
            return [row for batch in state.scan() for row in batch.to_pylist()]

    @property
    def rows_in_flight(self) -> int:
        return self._runner.manifest.rows_in_flight

    # -- how -----------------------------------------------------------------------------------------------------

    def _started(self, parent: Manifest) -> EpochRunner:
        """A new driver, which takes over from the last checkpoint."""
        self._generation += 1
        parallelism = {stage.name: self._parallelism for stage in self._pipeline.stages}
        manifest = takeover_manifest(
            parent,
            newest=parent.checkpoint,
            generation=Generation(self._generation),
            shape=parent.shape,
            parallelism=parallelism,
            library="",
            created_at="",
        )
        self._checkpoints.publish(manifest)
        cluster = _Stepped(self._store, self._limits, _ticking(), steps=self._steps, seed=self._seed)
        cluster.rewrite, cluster.partition_by = self._lose_reports, self._partition_by
        return EpochRunner(
            pipeline=self._pipeline,
            cluster=cluster,
            checkpoints=self._checkpoints,
            generation=Generation(self._generation),
            manifest=manifest,
            parallelism=parallelism,
            epoch_s=None,
            now=lambda: "",
            now_us=lambda: self._now,
        )

    def _lose_reports(self, reports: list[SubtaskReport]) -> list[SubtaskReport]:
        if self._crash:
            self._crash = False
            raise JobFailed("crash")
        return reports

    def _epoch(self, batch: OfferedBatch | None, flush_to: int | None = None) -> list[dict[str, Any]]:
        try:
            result = self._run(batch, flush_to)
        except JobFailed:
            self._runner = self._started(self._runner.manifest)
            result = self._run(batch, flush_to)
        emitted = {name: _rows(result, name) for name in self._collected}
        for name, rows in emitted.items():
            self._collected[name] += rows
        return emitted[_MAIN]

    def _run(self, batch: OfferedBatch | None, flush_to: int | None) -> EpochResult:
        sinks = self._runner.manifest.sinks
        return self._runner.publish(self._runner.prepare(batch, lambda: sinks, flush_to))


@dataclass(slots=True)
class _Stepped(InlineCluster):
    """Subtasks whose barrier fires after some steps, in all stages that have one."""

    steps: int | None = None

    def run(self, job: StageJob) -> list[SubtaskReport]:
        if self.steps is not None and not job.stage.unbounded:
            plan = msgspec.structs.replace(job.plan, budget_s=4 * _TICK_S * self.steps)
            job = replace(job, plan=plan)
        return InlineCluster.run(self, job)


def _ticking() -> Callable[[], float]:
    ticks = itertools.count()
    return lambda: next(ticks) * _TICK_S


def _require(what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise ValueError(f"there is no {what} {name!r}; there is {', '.join(known) or 'none'}")


def _table(rows: Rows, schema: pa.Schema, source: str) -> pa.Table:
    if isinstance(rows, pa.Table):
        for name in (*rows.schema.names, *schema.names):
            _require(f"column of {source}", name, schema.names)
            _require(f"column in the table for {source}", name, rows.schema.names)
        return rows.select(schema.names).cast(schema)
    rows = list(rows)
    for name in {name for row in rows for name in row}:
        _require(f"column of {source}", name, schema.names)
    columns = [_column([row.get(field.name) for row in rows], field) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    try:
        return arrow_values(values, field.type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"the column {field.name!r} is {field.type}: {error}") from error


def _rows(result: EpochResult, sink: str) -> list[dict[str, Any]]:
    committables = [
        part for report in result.reports for wrote in report.sinks if wrote.sink == sink for part in wrote.committables
    ]
    return [row for part in committables for batch in pa.ipc.open_stream(part.payload) for row in batch.to_pylist()]
