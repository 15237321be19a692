"""One subtask attempt: open state and inputs, step the operators until the input or the time is used up, then hand
over everything in one report (A6).

Nothing here counts until the driver accepts the report; an attempt that dies, or whose report is not taken, leaves
only files that nobody names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.channel.barrier import Barrier, Slicer
from penstock.channel.gate import Channel, Gate, LiveRows
from penstock.channel.hashing import hash_columns
from penstock.channel.reader import PrefetchingReader
from penstock.channel.segment import HASH_COLUMN, ExchangeWriter, SegmentWriter, edge_schema
from penstock.errors import PenstockError
from penstock.graph import Edge, SinkBinding, Stage, ToEdge, ToOperator, ToSink
from penstock.operators.base import Operator, Records, StateSchema
from penstock.protocol.garbage import file_path
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.keygroups import KeyGroupRange, spread
from penstock.protocol.plan import StagePlan, SubtaskPlan
from penstock.protocol.report import (
    InputReport,
    OutputReport,
    SinkReport,
    StateReport,
    SubtaskReport,
    Timing,
)
from penstock.sinks.base import Writer, WriterContext
from penstock.state.keyed import KeyedState
from penstock.store.base import Store

_NO_HASHES = np.empty(0, dtype=np.int64)


@lru_cache
def _spread(max_parallelism: int) -> npt.NDArray[np.int64]:
    return np.array(spread(max_parallelism), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes that do not change from epoch to epoch."""

    segment_bytes: int
    prefetch_bytes: int


def run_subtask(
    stage: Stage,
    plan: StagePlan,
    subtask: int,
    *,
    store: Store,
    limits: Limits,
    attempt: str,
    live: Iterator[pa.RecordBatch] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> SubtaskReport:
    """Runs one attempt to its report. A `PenstockError` becomes a report of failure; anything else is raised, so
    that Spark tries the subtask again."""
    started = clock()
    with ExitStack() as undo, ExitStack() as closing:
        try:
            run = _Attempt(stage, plan, plan.subtasks[subtask], store, limits, attempt, live, undo, closing)
            stepped = run.step(Barrier(plan.budget_s, clock), clock)
            inputs = run.spill()
            run.finish()
            report = run.report(inputs, stepped, lambda: clock() - started)
        except PenstockError as error:
            failure = _located(error, stage, subtask).to_report()
            return SubtaskReport(
                stage=plan.stage, subtask=subtask, checkpoint=plan.checkpoint, attempt=attempt, failure=failure
            )
        undo.pop_all()
        return report


def _located(error: PenstockError, stage: Stage, subtask: int) -> PenstockError:
    """The same error, with the place where it happened in its message too (D8)."""
    seen = f"{error.seen}\n  where:        stage {stage.name}, subtask {subtask}"
    fields = {"stage": stage.name, "subtask": str(subtask), **error.fields}
    return type(error)(seen, cause=error.cause, next_step=error.next_step, **fields)


@dataclass(slots=True)
class _Stepped:
    """What stepping measured."""

    seconds: float
    row_cost_s: float | None
    barrier_fired: bool = False
    barrier_delay_s: float = 0.0


class _Attempt:
    """The open parts of one attempt: `closing` lets go of them in any case, `undo` removes what a failed one wrote."""

    def __init__(
        self,
        stage: Stage,
        plan: StagePlan,
        mine: SubtaskPlan,
        store: Store,
        limits: Limits,
        attempt: str,
        live: Iterator[pa.RecordBatch] | None,
        undo: ExitStack,
        closing: ExitStack,
    ) -> None:
        self._stage, self._plan, self._mine = stage, plan, mine
        self._store, self._limits, self._attempt = store, limits, attempt
        self._undo, self._closing = undo, closing
        self._states = {
            node.spec.name: self._open_state(node.spec.name, node.spec.state_schema)
            for node in stage.nodes
            if node.spec.state_schema is not None
        }
        self._operators: list[Operator] = [node.spec.build(self._states.get(node.spec.name)) for node in stage.nodes]
        self._exchanges = {edge.name: self._open_exchange(edge) for edge in stage.outputs}
        self._emitted = dict.fromkeys(self._exchanges, 0)
        self._spread = _spread(plan.max_parallelism)
        self._writers = {binding.name: self._open_writer(binding) for binding in stage.sinks}
        self._written = dict.fromkeys(self._writers, 0)
        self.gate = Gate([self._open_channel(edge, live) for edge in stage.inputs])

    # -- opening -------------------------------------------------------------------------------------------------

    def _path(self, folder: str, owner: str, sequence: int) -> str:
        return file_path(
            folder,
            owner,
            checkpoint=self._plan.checkpoint,
            generation=self._plan.generation,
            subtask=self._mine.subtask,
            attempt=self._attempt,
            sequence=sequence,
        )

    def _open_state(self, operator: str, schema: StateSchema) -> KeyedState:
        files = self._mine.state.get(operator, ())
        state = KeyedState.open(self._store, files, self._mine.groups, schema, self._plan.max_parallelism)
        self._closing.callback(state.close)
        return state

    def _open_exchange(self, edge: Edge) -> ExchangeWriter:
        writer = ExchangeWriter(
            self._store,
            lambda sequence: self._path("segments", edge.name, sequence),
            edge_schema(edge.schema),
            epoch=self._plan.checkpoint,
            producer=self._mine.subtask,
            watermark=None,
            max_parallelism=self._plan.max_parallelism,
            consumer_parallelism=self._plan.consumer_parallelism[edge.name],
            target_bytes=self._limits.segment_bytes,
        )
        self._undo.callback(writer.abort)
        return writer

    def _open_writer(self, binding: SinkBinding) -> Writer:
        """Opened before the first step, so that a slow start of a sink does not look like slow rows."""
        context = WriterContext(
            checkpoint=CheckpointId(self._plan.checkpoint),
            generation=Generation(self._plan.generation),
            subtask=self._mine.subtask,
            parallelism=self._plan.parallelism,
            attempt=self._attempt,
        )
        writer = binding.sink.open_writer(context, binding.schema)
        self._undo.callback(writer.abort)
        return writer

    def _open_channel(self, edge: Edge, live: Iterator[pa.RecordBatch] | None) -> Channel:
        plan = next(part for part in self._mine.inputs if part.edge == edge.name)
        reader = PrefetchingReader(
            self._store, plan.reads, self._plan.max_parallelism, prefetch_bytes=self._limits.prefetch_bytes
        )
        self._closing.callback(reader.close)
        rows = LiveRows(live, edge_schema(edge.schema)) if plan.live and live is not None else None
        return Channel(edge.name, reader, rows)

    # -- stepping ------------------------------------------------------------------------------------------------

    def step(self, barrier: Barrier, clock: Callable[[], float]) -> _Stepped:
        """Steps the head operator slice by slice until the inputs or the time are used up.

        The first slice is taken however late it is: every epoch makes progress.
        """
        slicer = Slicer(self._plan.row_cost_s)
        while (taken := self.gate.take(slicer.rows(barrier.left_s))) is not None:
            start = clock()
            self._emit(0, self._operators[0].process(taken.records))
            slicer.observe(taken.records.rows, clock() - start)
            if barrier.fired():
                delay_s = barrier.delay_s
                if not self.gate.used_up():
                    return _Stepped(barrier.elapsed_s, slicer.row_cost_s, barrier_fired=True, barrier_delay_s=delay_s)
        return _Stepped(barrier.elapsed_s, slicer.row_cost_s)

    def _emit(self, index: int, batches: Iterator[pa.RecordBatch]) -> None:
        for batch in batches:
            if batch.num_rows == 0:
                continue
            for target in self._stage.nodes[index].targets:
                match target:
                    case ToOperator(downstream):
                        records = Records(batch, _NO_HASHES)
                        self._emit(downstream, self._operators[downstream].process(records))
                    case ToEdge(edge):
                        self._exchanges[edge.name].write(self._with_hash(edge, batch))
                        self._emitted[edge.name] += batch.num_rows
                    case ToSink(sink):
                        self._writers[sink].write(batch)
                        self._written[sink] += batch.num_rows

    def _with_hash(self, edge: Edge, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of an unkeyed edge keep their producer's lane."""
        if edge.routing is not None:
            # Consecutive lanes go to key groups far apart, so that few lanes keep all subtasks busy.
            hashes = self._spread[edge.routing.lanes(batch) % self._plan.max_parallelism]
        elif edge.keys:
            hashes = hash_columns([batch.column(key) for key in edge.keys])
        else:
            hashes = np.full(batch.num_rows, self._mine.groups.lo, dtype=np.int64)
        return pa.RecordBatch.from_arrays([*batch.columns, pa.array(hashes)], [*batch.schema.names, HASH_COLUMN])

    # -- ending --------------------------------------------------------------------------------------------------

    def spill(self) -> tuple[InputReport, ...]:
        """Live rows behind the barrier become in-flight data; without a barrier nothing is written (A3)."""
        return tuple(
            channel.spill(self._spill_writer(edge))
            for edge, channel in zip(self._stage.inputs, self.gate.channels, strict=True)
        )

    def _spill_writer(self, edge: Edge) -> SegmentWriter:
        writer = SegmentWriter(
            self._store,
            lambda sequence: self._path("segments", edge.name, sequence),
            edge_schema(edge.schema),
            epoch=self._plan.checkpoint,
            producer=self._mine.subtask,
            watermark=None,
            max_parallelism=self._plan.max_parallelism,
            groups=KeyGroupRange(self._mine.groups.lo, self._mine.groups.hi),
            target_bytes=self._limits.segment_bytes,
        )
        self._undo.callback(writer.abort)
        return writer

    def finish(self) -> None:
        """Lets operators emit what they hold back until the end, upstream first."""
        for index, operator in enumerate(self._operators):
            self._emit(index, operator.finish())

    def report(
        self, inputs: tuple[InputReport, ...], stepped: _Stepped, elapsed_s: Callable[[], float]
    ) -> SubtaskReport:
        """Makes everything durable, then says what it is."""
        outputs = tuple(
            OutputReport(edge=name, rows=self._emitted[name], segments=tuple(writer.close()))
            for name, writer in self._exchanges.items()
        )
        state = tuple(
            StateReport(operator=name, added=change.added, replaced=change.replaced)
            for name, change in (
                (name, handle.flush(self._path("state", name, 0))) for name, handle in self._states.items()
            )
        )
        sinks = tuple(
            SinkReport(sink=name, rows=self._written[name], committables=tuple(writer.prepare()))
            for name, writer in self._writers.items()
        )
        return SubtaskReport(
            stage=self._plan.stage,
            subtask=self._mine.subtask,
            checkpoint=self._plan.checkpoint,
            attempt=self._attempt,
            inputs=inputs,
            outputs=outputs,
            state=state,
            sinks=sinks,
            timing=Timing(
                elapsed_s=elapsed_s(),
                stepped_s=stepped.seconds,
                barrier_fired=stepped.barrier_fired,
                barrier_delay_s=stepped.barrier_delay_s,
                row_cost_s=stepped.row_cost_s,
            ),
        )
