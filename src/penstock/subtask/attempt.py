"""One subtask attempt: open state and inputs, step the operators until the input or the time is used up, then hand
over everything in one report.

Nothing counts until the driver accepts the report: an attempt that dies leaves only files that no checkpoint names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import cast

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError, not_text
from penstock.graph.stages import Edge, Leftover, SinkBinding, Stage, StateTable, Target, ToEdge, ToOperator, ToSink
from penstock.hashing import hash_columns
from penstock.inflight.arrivals import ArrivalWriters
from penstock.inflight.eventtimes import EventTimes
from penstock.inflight.gate import Channel, Gate, as_records
from penstock.inflight.lanes import Dealer, DealingWriter, spread_lanes
from penstock.inflight.live import LiveInputs, LiveRows, RowsWriter
from penstock.inflight.reader import PrefetchingReader
from penstock.inflight.segment import HASH_COLUMN, Apart, ExchangeWriter, SegmentWriter, edge_schema
from penstock.inflight.watermarks import ChannelWatermarks
from penstock.operators.base import ConcurrentOperator, OperatorContext, OperatorSpec, TimedOperator
from penstock.operators.failures.deadletters import sample_of
from penstock.protocol.ids import CheckpointId
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.layout import SEGMENTS, STATE, Announcement, AttemptId, DataFile
from penstock.protocol.plan import StagePlan, SubtaskPlan
from penstock.protocol.report import (
    DueReport,
    InputReport,
    OutputReport,
    SinkReport,
    StateReport,
    SubtaskReport,
    Timing,
)
from penstock.records import DEAD_LETTERS, NO_WATERMARK, Emitted, Records, Side, Time
from penstock.sinks.base import Writer, WriterContext
from penstock.slices import GATHERED_ROWS, MAX_SLICE_ROWS, Slicer
from penstock.state.keyed import KeyedState
from penstock.store.base import Store
from penstock.subtask.barrier import Barrier
from penstock.subtask.concurrent import ConcurrentSteps
from penstock.subtask.leftovers import LeftoverInput, step_leftovers
from penstock.subtask.meter import Effort, Meter
from penstock.subtask.watchdog import Watched

_NO_HASHES = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Limits:
    """Settings that do not change from epoch to epoch. After `stuck_s` without a finished step a subtask reports where
    it is."""

    segment_bytes: int
    prefetch_bytes: int
    stuck_s: float | None = None


def run_subtask(
    stage: Stage,
    plan: StagePlan,
    subtask: int,
    *,
    store: Store,
    limits: Limits,
    attempt: str,
    live: LiveInputs | None = None,
    clock: Callable[[], float] = time.monotonic,
    meter: Meter | None = None,
) -> SubtaskReport:
    """Runs one attempt to its report. A `PenstockError` becomes a report of failure; anything else is raised, so
    that Spark tries the subtask again."""
    started = clock()
    with ExitStack() as undo, ExitStack() as closing:
        try:
            run = _Attempt(stage, plan, plan.of(subtask), store, limits, attempt, live, undo, closing, clock)
            opened_s = clock() - started
            stepped = run.step(Barrier(plan.budget_s, clock), meter or Meter(clock))
            inputs = run.spill()
            run.finish()
            report = run.report(inputs, stepped, opened_s, lambda: clock() - started)
        except (PenstockError, UnicodeError) as error:
            told = error if isinstance(error, PenstockError) else not_text(error)
            failure = _located(told, stage, subtask).to_report()
            return SubtaskReport(
                stage=plan.stage, subtask=subtask, checkpoint=plan.checkpoint, attempt=attempt, failure=failure
            )
        undo.pop_all()
        return report


def _located(error: PenstockError, stage: Stage, subtask: int) -> PenstockError:
    """The same error, with the place where it happened in its message too."""
    seen = f"{error.seen}\n  where:        stage {stage.name}, subtask {subtask}"
    fields = {"stage": stage.name, "subtask": str(subtask), **error.fields}
    return type(error)(seen, cause=error.cause, next_step=error.next_step, **fields)


@dataclass(slots=True)
class _Stepped:
    """What stepping measured."""

    seconds: float
    barrier_fired: bool
    barrier_delay_s: float
    worked: Effort


class _Attempt(Watched):
    """The open parts of one attempt. `closing` always closes them; `undo` removes the files of a failed attempt."""

    def __init__(
        self,
        stage: Stage,
        plan: StagePlan,
        mine: SubtaskPlan,
        store: Store,
        limits: Limits,
        attempt: str,
        live: LiveInputs | None,
        undo: ExitStack,
        closing: ExitStack,
        clock: Callable[[], float],
    ) -> None:
        self._stage, self._plan, self._mine, self._store, self._limits = stage, plan, mine, store, limits
        self._me = AttemptId(plan.checkpoint, plan.generation, mine.subtask, attempt)
        self._undo, self._closing, self._live, self._clock = undo, closing, live, clock
        self._states = {table.name: self._open_state(table) for table in stage.tables}
        self.operators = [node.spec.build(self._context(node.spec)) for node in stage.nodes]
        self._exchanges = {edge.name: self._open_exchange(edge) for edge in stage.outputs}
        self._dealers = {edge.name: Dealer(plan.max_parallelism, mine.groups.lo) for edge in stage.outputs}
        self._emitted = dict.fromkeys(self._exchanges, 0)
        self._writers = {binding.name: self._open_writer(binding) for binding in stage.sinks}
        self._written = dict.fromkeys(self._writers, 0)
        self.gate = Gate([self._open_channel(edge, live) for edge in stage.inputs], stage.head.port_ranks)
        self._leftovers = [LeftoverInput(part, self._open_channel(part.edge, None)) for part in stage.leftovers]
        self._time = Time(mine.groups, self.gate.watermarks(mine.groups), plan.now, plan.max_parallelism)
        self._done_until, self._samples = NO_WATERMARK, dict[str, str]()
        rows_max = GATHERED_ROWS if stage.head.gathers else MAX_SLICE_ROWS
        self._slicers = [Slicer(plan.row_cost_s, rows_max) for _ in stage.inputs]

    # -- opening -------------------------------------------------------------------------------------------------

    def _path(self, folder: str, owner: str, sequence: int) -> str:
        return DataFile(folder, owner, self._me, sequence).path

    def _open_state(self, table: StateTable) -> KeyedState:
        files = self._mine.state.get(table.name, ())
        groups = KeyGroupRange(0, self._plan.max_parallelism) if table.broadcast else self._mine.groups
        state = KeyedState.open(self._store, files, groups, table.schema, self._plan.max_parallelism)
        self._closing.callback(state.close)
        return state

    def _context(self, spec: OperatorSpec) -> OperatorContext:
        return OperatorContext(
            states={
                table.part: self._states[table.name] for table in self._stage.tables if table.operator == spec.name
            },
            subtask=self._mine.subtask,
            groups=self._mine.groups,
            max_parallelism=self._plan.max_parallelism,
            checkpoint=self._plan.checkpoint,
            now=self._plan.now,
            clock=self._clock,
        )

    def _open_exchange(self, edge: Edge) -> ArrivalWriters:
        consumers, watermark = self._plan.consumer_parallelism[edge.name], self._plan.output_watermarks[edge.name]
        opened = partial(self._exchange, edge, consumers, watermark)
        return ArrivalWriters(opened, self._plan.checkpoint if edge.keeps_arrivals else None)

    def _exchange(
        self, edge: Edge, consumers: int, watermark: int | None, apart: Apart | None = None
    ) -> ExchangeWriter:
        writer = ExchangeWriter(
            self._store,
            lambda sequence: self._path(SEGMENTS, edge.name, sequence),
            edge_schema(edge.schema),
            epoch=self._plan.checkpoint,
            producer=self._mine.subtask,
            watermark=watermark,
            max_parallelism=self._plan.max_parallelism,
            consumer_parallelism=consumers,
            target_bytes=self._limits.segment_bytes,
            apart=apart,
        )
        self._undo.callback(writer.abort)
        return writer

    def _open_writer(self, binding: SinkBinding) -> Writer:
        """Opened before the first step, so that a slow start of a sink does not look like slow rows."""
        announced = Announcement(binding.name, self._me).path
        context = WriterContext(
            checkpoint=self._me.checkpoint,
            generation=self._me.generation,
            subtask=self._me.subtask,
            parallelism=self._plan.parallelism,
            attempt=self._me.attempt,
            announce=lambda file: self._store.append(announced, file.encode()),
        )
        writer = binding.sink.open_writer(context, binding.schema)
        self._undo.callback(writer.abort)
        return writer

    def _open_channel(self, edge: Edge, live: LiveInputs | None) -> Channel:
        plan = next(part for part in self._mine.inputs if part.edge == edge.name)
        groups, ahead = self._plan.max_parallelism, self._limits.prefetch_bytes
        reader = PrefetchingReader(self._store, plan.reads, groups, ahead, edge_schema(edge.schema))
        self._closing.callback(reader.close)
        rows = None
        inputs = live if plan.live else None
        if inputs is not None or (self._stage.head.concurrent and edge in self._stage.inputs):
            spill, gathers = partial(self._open_spill, edge), self._stage.head.gathers
            watermark = self._mine.arrival_watermark
            times = EventTimes(edge.schema, edge.event_time, edge.watermark_by)
            rows = LiveRows(edge_schema(edge.schema), spill, watermark, times, gathers=gathers)
            if inputs is not None:
                inputs.attach(edge.name, rows)
        watermarks = None
        if edge.timed:
            watermarks = ChannelWatermarks(self._mine.groups, plan.reads, plan.watermark, broadcast=edge.broadcast)
        limit = self._plan.broadcast_rows_max if edge.broadcast else None
        return Channel(edge.name, reader, rows, watermarks, broadcast=edge.broadcast, rows_max=limit)

    # -- stepping ------------------------------------------------------------------------------------------------

    def step(self, barrier: Barrier, meter: Meter) -> _Stepped:
        """Steps the head operator until its inputs or the time are used up. The first slice is taken however late it
        is: every epoch makes progress."""
        if self._plan.rerouting:
            fired = step_leftovers(self._leftovers, self._send_leftover, barrier, self._clock, self._plan.row_cost_s)
            delay_s = barrier.delay_s if fired else 0.0
            return _Stepped(barrier.elapsed_s, fired, delay_s, Effort(barrier.elapsed_s))
        if self._stage.head.concurrent:
            return self._step_concurrently(barrier)
        worked = Effort()
        stopped = not self._advance(barrier)
        while True:
            # Time comes first: an operator does what a watermark made due before it gets the rows behind it.
            self.gate.look_ahead()
            stopped = stopped or self._follow_time(barrier)
            if stopped and not self.gate.obliged():
                break
            taken = self.gate.take(lambda port: self._slicers[port].rows(barrier.left_s))
            if taken is None:
                break
            records = as_records(taken, self._time)
            before = meter.read()
            self._emit(0, self.operators[0].process(records), taken.arrival)
            spent = meter.read() - before
            worked += spent
            slicer = self._slicers[taken.port]
            slicer.observe(records.rows, spent.wall_s, cpu_s=spent.cpu_s, delayed_s=spent.delayed_s)
            stopped = stopped or barrier.fired()
        delay_s = barrier.delay_s
        fired = stopped and not (self.gate.used_up() and self._done_until == self._time.lowest)
        return _Stepped(barrier.elapsed_s, fired, delay_s if fired else 0.0, worked)

    def _step_concurrently(self, barrier: Barrier) -> _Stepped:
        """Steps a head operator that works on several slices at once."""

        def now() -> Time:
            self._follow_time(barrier)
            return self._time

        (channel,) = self.gate.channels
        operator = cast("ConcurrentOperator", self.operators[0])
        self._closing.callback(operator.close)
        self._advance(barrier)
        steps = ConcurrentSteps(channel, operator, partial(self._emit, 0), now)
        steps.run(barrier)
        elapsed_s, delay_s, left = barrier.elapsed_s, barrier.delay_s, not self.gate.used_up()
        self._follow_time(barrier)
        unfinished, watermark = steps.give_back(in_place=self._stage.head.keeps_order)
        if watermark is not None:
            self._done_until = min(self._done_until, watermark)
        self._slicers[0].observe(steps.rows - unfinished, elapsed_s)
        fired = left or unfinished > 0
        return _Stepped(elapsed_s, fired, delay_s if fired else 0.0, Effort(elapsed_s))

    def _follow_time(self, barrier: Barrier) -> bool:
        """Tells the operator when watermarks have moved; True when the barrier fired over that."""
        watermarks = self.gate.watermarks(self._mine.groups)
        if np.array_equal(watermarks, self._time.watermarks):
            return False
        self._time = Time(self._mine.groups, watermarks, self._plan.now, self._plan.max_parallelism)
        return not self._advance(barrier)

    def _advance(self, barrier: Barrier) -> bool:
        """Lets the head operator do what is due; False when the barrier ended it."""
        if self._stage.head.timed:
            operator = cast("TimedOperator", self.operators[0])
            for emitted in operator.advance(self._time):
                self._emit(0, iter((emitted,)))
                if not isinstance(emitted, Side) and barrier.fired():
                    return False
        self._done_until = self._time.lowest
        return True

    def _emit(self, index: int, emitted: Iterator[Emitted], arrival: CheckpointId | None = None) -> None:
        """Sends output on that was made of rows with this arrival; None: it arrives now."""
        node = self._stage.nodes[index]
        for item in emitted:
            batch, targets = (
                (item.batch, node.sides.get(item.output, ())) if isinstance(item, Side) else (item, node.targets)
            )
            if isinstance(item, Side) and item.output == DEAD_LETTERS:
                self._samples.setdefault(node.spec.name, sample_of(item.batch))
            if batch.num_rows:
                self._send(batch, targets, arrival)

    def _send_leftover(self, leftover: Leftover, batch: pa.RecordBatch, arrival: CheckpointId | None) -> None:
        self._send(batch, leftover.targets, arrival)

    def _send(self, batch: pa.RecordBatch, targets: tuple[Target, ...], arrival: CheckpointId | None) -> None:
        for target in targets:
            match target:
                case ToOperator(downstream):
                    records = Records(batch, _NO_HASHES)
                    self._emit(downstream, self.operators[downstream].process(records), arrival)
                case ToEdge(edge):
                    self._exchanges[edge.name].write(self._with_hash(edge, batch), arrival)
                    self._emitted[edge.name] += batch.num_rows
                case ToSink(sink):
                    self._writers[sink].write(batch)
                    self._written[sink] += batch.num_rows

    def _with_hash(self, edge: Edge, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of an unkeyed edge keep their producer's lane, or are dealt out."""
        if edge.routing is not None:
            # Consecutive lanes go to key groups far apart, so that few lanes keep all subtasks busy.
            hashes = spread_lanes(self._plan.max_parallelism)[edge.routing.lanes(batch) % self._plan.max_parallelism]
        elif edge.keys:
            hashes = hash_columns([batch.column(key) for key in edge.keys])
        elif edge.dealt:
            hashes = self._dealers[edge.name].deal(batch.num_rows)
        else:
            hashes = np.full(batch.num_rows, self._mine.groups.lo, dtype=np.int64)
        return pa.RecordBatch.from_arrays([*batch.columns, pa.array(hashes)], [*batch.schema.names, HASH_COLUMN])

    # -- ending --------------------------------------------------------------------------------------------------

    def spill(self) -> tuple[InputReport, ...]:
        """Live rows behind the barrier become in-flight data; without a barrier nothing is written."""
        if self._live is not None:
            self._live.drain()  # before any channel ends: rows read for the last channel may belong to the first
        leftovers = (part.channel for part in self._leftovers)
        return tuple(channel.spill() for channel in (*self.gate.channels, *leftovers))

    def _open_spill(self, edge: Edge, watermark: int | None) -> RowsWriter:
        if edge.dealt:
            writer = self._exchange(edge, self._plan.parallelism, watermark)
            return DealingWriter(writer, Dealer(self._plan.max_parallelism, self._mine.groups.lo))
        spilling = SegmentWriter(
            self._store,
            lambda sequence: self._path(SEGMENTS, edge.name, sequence),
            edge_schema(edge.schema),
            epoch=self._plan.checkpoint,
            producer=self._mine.subtask,
            watermark=watermark,
            max_parallelism=self._plan.max_parallelism,
            groups=self._mine.groups,
            target_bytes=self._limits.segment_bytes,
        )
        self._undo.callback(spilling.abort)
        return spilling

    def finish(self) -> None:
        """Lets operators emit what they hold back until the end, upstream first."""
        for index, operator in enumerate(self.operators):
            self._emit(index, operator.finish())

    def report(
        self, inputs: tuple[InputReport, ...], stepped: _Stepped, opened_s: float, elapsed_s: Callable[[], float]
    ) -> SubtaskReport:
        """Makes all files durable and returns the report."""
        outputs = tuple(
            OutputReport(edge=name, rows=self._emitted[name], segments=tuple(writer.close()))
            for name, writer in self._exchanges.items()
        )
        due = tuple(self._due())
        state = tuple(
            StateReport(table=table.name, added=change.added, replaced=change.replaced)
            for table, change in (
                (table, self._states[table.name].flush(self._path(STATE, table.name, 0)))
                for table in self._stage.tables
                # All subtasks have made the same changes to a broadcast table.
                if not table.broadcast or self._mine.subtask == 0
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
            attempt=self._me.attempt,
            inputs=inputs,
            outputs=outputs,
            state=state,
            sinks=sinks,
            watermark=None if self._done_until == NO_WATERMARK else self._done_until,
            due=due,
            counters=self._counters(),
            samples=self._samples,
            timing=Timing(
                elapsed_s=elapsed_s(),
                stepped_s=stepped.seconds,
                barrier_fired=stepped.barrier_fired,
                barrier_delay_s=stepped.barrier_delay_s,
                row_cost_s=self._row_cost_s(broadcast=False),
                broadcast_row_cost_s=self._row_cost_s(broadcast=True),
                opened_s=opened_s,
                worked_s=stepped.worked.wall_s,
                cpu_s=stepped.worked.cpu_s,
                delayed_s=stepped.worked.delayed_s,
            ),
        )

    def _due(self) -> Iterator[DueReport]:
        node = self._stage.nodes[0]
        if node.spec.timed:
            due = cast("TimedOperator", self.operators[0]).next_due()
            yield DueReport(operator=node.spec.name, **asdict(due))

    def _counters(self) -> dict[str, int]:
        return {
            f"{node.spec.name}.{name}": count
            for node, operator in zip(self._stage.nodes, self.operators, strict=True)
            for name, count in operator.counters().items()
            if count
        }

    def _row_cost_s(self, *, broadcast: bool) -> float | None:
        """The cost of a row of the most expensive input, if any."""
        slicers = zip(self._stage.inputs, self._slicers, strict=True)
        costs = [slicer.row_cost_s for edge, slicer in slicers if edge.broadcast == broadcast]
        return max((cost for cost in costs if cost is not None), default=None)
