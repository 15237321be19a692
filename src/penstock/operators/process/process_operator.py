"""Runs user code per key in a subtask: grouping, state, timers and output in bulk, one Python call per key and slice.

A slice is all or nothing: output, state and timers leave only after every key of the slice went through.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.display import record_of
from penstock.errors import OperatorFailed
from penstock.operators.base import OperatorContext, OperatorDefaults
from penstock.operators.failures.failing import operator_failed
from penstock.operators.grouping import group_rows
from penstock.operators.process.firing import NAME, TIME, Firing, OnTimer
from penstock.operators.process.timers import TIMERS, TimerRules, Timers, TimerStore, timer_tables
from penstock.operators.process.user_output import Misfit, RowCollector
from penstock.operators.process.user_state import ROW_EXPIRES, StateField, StateLayout, Unfit, state_schema
from penstock.operators.values.convert import first_unreadable, python_rows
from penstock.records import MAIN_STATE, NO_WATERMARK, Due, Emitted, Records, Side, StateSchema, Time
from penstock.slices import STEP_TARGET_S, Slicer
from penstock.state.keys import Rows, normalise
from penstock.state.ranges import Entries

if TYPE_CHECKING:
    from penstock.operators.process.process import Process

_TIMERS_READ = 4096

Call: TypeAlias = Callable[[dict[str, Any], list[dict[str, Any]], Any, RowCollector, Timers], None]
"""User code for one key, called with the key, its rows, its state, its output and its timers."""


def opened(name: str, function: Any) -> Any:
    """An instance of the user's class of this attempt's own."""
    try:
        instance = function() if isinstance(function, type) else copy.copy(function)
        instance.open()
    except Exception as error:
        raise operator_failed(name, error, "") from error
    return instance


@dataclass(frozen=True)
class CodeShape:
    """What keyed user code was declared with."""

    name: str
    keys: pa.Schema
    fields: tuple[StateField, ...]
    output: pa.Schema
    sides: Mapping[str, pa.Schema]
    timers: TimerRules

    def tables(self) -> dict[str, StateSchema]:
        own = {MAIN_STATE: StateSchema(self.keys, state_schema(self.fields), may_grow=True)} if self.fields else {}
        return {**own, **(timer_tables(self.keys) if self.timers.fire else {})}


class ProcessOperator(OperatorDefaults):
    """One subtask attempt's instance of a `KeyedProcess`."""

    def __init__(self, spec: Process, context: OperatorContext, *, blames: bool = True) -> None:
        """`blames`: whether to search a failing slice for the failing row. Otherwise the caller does that."""
        self._keys, self._blames = spec.keys, blames
        function = opened(spec.name, spec.function)
        self._call: Call = function.process if spec.takes_timers else without_timers(function.process)
        self._code = KeyedCode(spec.shape, context, function.on_timer if spec.timed else None)

    def process(self, records: Records) -> Iterator[Emitted]:
        return self._code.run(self._call, records, self._keys, blames=self._blames)

    def finish(self) -> Iterator[Emitted]:
        return self._code.finish()

    def advance(self, time: Time) -> Iterator[Emitted]:
        return self._code.advance(time)

    def next_due(self) -> Due:
        return self._code.next_due()


def _by_time(timers: Entries) -> Rows:
    """Timers in the order of time, those of one moment by name: in the same order wherever a step ends."""
    times, names = timers.keys.column(0).to_numpy(), timers.keys.column(1)
    if len(names.unique()) == 1:
        return np.argsort(times, kind="stable")
    return np.lexsort((pc.rank(names, tiebreaker="dense").to_numpy(), times))


def without_timers(call: Callable[..., None]) -> Call:
    return lambda key, rows, state, out, _: call(key, rows, state, out)


class Slice(NamedTuple):
    """A slice ordered by key: key number k has the rows ``starts[k]`` to ``starts[k + 1]`` of `batch`."""

    hashes: npt.NDArray[np.int64]
    keys: pa.RecordBatch
    batch: pa.RecordBatch
    starts: list[int]
    stored: pa.RecordBatch
    time: Time | None

    @property
    def now(self) -> int:
        return 0 if self.time is None else self.time.now


class KeyedCode:
    """Calls user code for the keys of a slice, with their state; and for timers that are due."""

    def __init__(
        self,
        shape: CodeShape,
        context: OperatorContext,
        on_timer: OnTimer | None = None,
        shared: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """`shared` are further, read-only attributes of every key's state."""
        self._shape, self._on_timer = shape, on_timer
        self._state = context.states.get(MAIN_STATE)
        self._layout = StateLayout(shape.fields, shared)
        self._mortal = any(field.ttl_us is not None for field in shape.fields)
        self._groups = context.groups
        self._timers = TimerStore(context.states, context) if TIMERS in context.states else None
        self._time: Time | None = None
        self._all_fired = self._any_left = False
        # The task cuts rows to steps of about 20 ms; timers are cut here, by the same rule.
        self._slicer, self._clock = Slicer(), context.clock

    # -- rows ----------------------------------------------------------------------------------------------------

    def run(self, call: Call, records: Records, keys: Sequence[str], *, blames: bool = True) -> Iterator[Emitted]:
        """Takes a slice whose key columns are called `keys`."""
        if not records.rows:
            return iter(())
        self._time = records.time
        timers, emitted = self._run(call, records, keys, blames=blames)
        if self._time is not None and self._timers is not None:
            self._all_fired &= not self._any_due(timers)
        return iter(emitted)

    def _run(
        self, call: Call, records: Records, names: Sequence[str], *, blames: bool = True
    ) -> tuple[Timers, list[Emitted]]:
        part = self._load(records, names)
        views = self._layout.views(part.stored, part.now)
        timers = Timers(part.time, part.hashes, self._shape.timers)
        out = RowCollector(self._shape.output, self._shape.sides)
        rows, starts = self._rows(part.batch), part.starts
        for number, (key, view) in enumerate(zip(python_rows(part.keys), views, strict=True)):
            try:
                call(key, rows[starts[number] : starts[number + 1]], view, out, timers.of_key(number))
            except Exception as error:
                raise self._failed(call, part, number, error, blames=blames) from error
            out.end_call()
        try:
            emitted = list(out.emitted())
            self._store(part, views)
        except Misfit as misfit:
            raise self._failed(call, part, misfit.call, misfit.error, blames=blames) from misfit
        except Unfit as misfit:
            raise self._failed(call, part, misfit.key, misfit.error, blames=blames) from misfit
        if self._timers is not None:
            self._timers.apply(timers, part.hashes, part.keys)
        return timers, emitted

    def _rows(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        try:
            return python_rows(batch)
        except (OverflowError, ValueError):
            row, error = first_unreadable(batch)
            raise operator_failed(self._shape.name, error, record_of(batch, row)) from error

    def _load(self, records: Records, names: Sequence[str]) -> Slice:
        columns = [normalise(records.batch.column(name)) for name in names]
        keys = pa.RecordBatch.from_arrays(columns, schema=self._shape.keys)
        grouping = group_rows(records.hashes, keys)
        hashes, keys = records.hashes[grouping.firsts], keys.take(pa.array(grouping.firsts))
        batch = records.batch.take(pa.array(grouping.order))
        stored = keys.select([]) if self._state is None else self._state.lookup(hashes, keys).values
        return Slice(hashes, keys, batch, [*grouping.starts.tolist(), records.rows], stored, records.time)

    def _store(self, part: Slice, views: Sequence[Any]) -> None:
        """Writes back what changed; a key without any state is deleted."""
        if self._state is None:
            return
        columns, changed, empty = self._layout.changes(part.stored, views, part.now)
        rows = np.flatnonzero(changed)
        if len(rows):
            values = pa.RecordBatch.from_arrays(columns, schema=part.stored.schema)
            picked = pa.array(rows)
            self._state.update(part.hashes[rows], part.keys.take(picked), values.take(picked), empty[rows])

    def finish(self) -> Iterator[Emitted]:
        if self._mortal and self._state is not None and self._time is not None:
            self._state.expire(ROW_EXPIRES, np.full(len(self._groups), self._time.now + 1, np.int64))
        return iter(())

    # -- timers --------------------------------------------------------------------------------------------------

    def advance(self, time: Time) -> Iterator[Emitted]:
        """Fires what is due, per key in the order of time."""
        self._time, self._all_fired, self._any_left = time, False, False
        if self._timers is not None:
            yield from self._fire(time, time.watermarks, event=True)
            yield from self._fire(time, np.full(len(self._groups), time.now, np.int64), event=False)
        self._all_fired = not self._any_left

    def next_due(self) -> Due:
        if self._timers is None or self._time is None:
            return Due()
        if not self._all_fired:
            left = self._timers.lines[True].last()
            return Due(event_time=NO_WATERMARK + 1, processing_time=self._time.now, last=left)
        now = np.full(len(self._groups), self._time.now, np.int64)
        return Due(
            event_time=self._timers.lines[True].next_after(self._time.watermarks),
            processing_time=self._timers.lines[False].next_after(now),
            last=self._timers.lines[True].last(),
        )

    def _any_due(self, timers: Timers) -> bool:
        """Whether a timer was set to a moment that has passed. It fires when time moves on, or in the next epoch."""
        assert self._time is not None
        return any(
            setting.time <= (self._time.highest if setting.event else self._time.now) for setting in timers.settings()
        )

    def _fire(self, time: Time, until: npt.NDArray[np.int64], *, event: bool) -> Iterator[Emitted]:
        assert self._timers is not None
        line = self._timers.lines[event]
        for groups in line.batches(until, _TIMERS_READ):
            # Read again when a timer was set that comes before some of those that were read.
            again = True
            while again and (read := line.due(groups, until)) is not None:
                by_time = _by_time(read)
                again, done = False, 0
                while done < len(by_time) and not again:
                    rows = by_time[done : done + self._slicer.rows(STEP_TARGET_S)]
                    chunk, started = read.take(np.sort(rows)), self._clock()
                    line.remove(chunk)  # first, since user code may set the same timer again
                    emitted, again = self._fire_chunk(chunk, time, int(until.max()), event=event)
                    self._slicer.observe(len(rows), self._clock() - started)
                    done += len(rows)
                    # The barrier may end this after a main batch, so that comes last.
                    yield from (part for part in emitted if isinstance(part, Side))
                    nothing = pa.RecordBatch.from_pylist([], schema=self._shape.output)
                    yield next((part for part in emitted if not isinstance(part, Side)), nothing)

    def _fire_chunk(self, chunk: Entries, time: Time, last: int, *, event: bool) -> tuple[list[Emitted], bool]:
        """Fires the timers of a chunk, and those that user code sets meanwhile and that come before its end."""
        assert self._timers is not None
        assert self._on_timer is not None
        end = int(chunk.keys.column(0).to_numpy().max())
        valid = self._timers.valid(chunk, event=event)
        if not len(valid):
            return [], False
        fired = chunk.take(valid)
        times, names, *keys = fired.keys.columns
        batch = pa.RecordBatch.from_arrays([times, names, *keys], [TIME, NAME, *self._shape.keys.names])
        records = Records(batch, fired.values.column(0).to_numpy(), time=time)
        firing = Firing(self._on_timer, time, end, last, event=event)
        _, emitted = self._run(firing, records, self._shape.keys.names)
        self._any_left |= firing.left
        return emitted, firing.again

    # -- failures ------------------------------------------------------------------------------------------------

    def _failed(self, call: Call, part: Slice, number: int, error: Exception, *, blames: bool) -> OperatorFailed:
        """The error for key `number`, with the row that made it fail: the last of its shortest failing beginning."""
        start, stop = part.starts[number], part.starts[number + 1]
        if not blames:
            return operator_failed(self._shape.name, error, "")
        passing, failing = start, stop
        while failing - passing > 1:
            middle = (passing + failing) // 2
            again = self._attempt(call, part, number, middle)
            if again is not None and type(again) is type(error):
                failing = middle
            else:
                passing = middle
        note = f"row {failing - start} of {stop - start} of this key in this slice" if stop - start > 1 else ""
        return operator_failed(self._shape.name, error, record_of(part.batch, failing - 1), note=note)

    def _attempt(self, call: Call, part: Slice, number: int, stop: int) -> Exception | None:
        """Runs user code once more, for one key and its rows before `stop`, without effects. Returns its error."""
        start = part.starts[number]
        (key,) = python_rows(part.keys.slice(number, 1))
        (view,) = self._layout.views(part.stored.slice(number, 1), part.now)
        out = RowCollector(self._shape.output, self._shape.sides)
        timers = Timers(part.time, part.hashes[number : number + 1], self._shape.timers)
        try:
            call(key, python_rows(part.batch.slice(start, stop - start)), view, out, timers)
            list(out.emitted())
        except Misfit as misfit:
            return misfit.error
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            return error
        return self._layout.first_misfit(view)
