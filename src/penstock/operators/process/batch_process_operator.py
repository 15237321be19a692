"""Runs user code over whole slices, and writes what it changed into the state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.hashing import hash_columns
from penstock.operators.base import OperatorContext, OperatorDefaults
from penstock.operators.failures.failing import BadOutput, batch_failed, operator_failed
from penstock.operators.grouping import group_rows
from penstock.operators.process.process_operator import opened
from penstock.operators.process.slice_state import Columns, Keys
from penstock.operators.process.user_state import ROW_EXPIRES, StateField, alive, with_expiry
from penstock.operators.values.convert import fit_batches, in_own_memory
from penstock.operators.values.lossless import cast_column
from penstock.records import MAIN_STATE, Records
from penstock.state.keys import normalise

Hashes = npt.NDArray[np.int64]

if TYPE_CHECKING:
    from penstock.operators.process.batch_process import SliceProcess


class _Ran(NamedTuple):
    """What user code made of a slice: output, and changed columns of state for its keys."""

    keys: Keys
    hashes: Hashes
    stored: pa.RecordBatch | None
    output: list[pa.RecordBatch]
    changed: dict[StateField, pa.Array]


class SliceOperator(OperatorDefaults):
    """One subtask attempt's instance of a `BatchProcess`."""

    def __init__(self, spec: SliceProcess, context: OperatorContext, *, blames: bool = True) -> None:
        """`blames`: a failing slice is run again in parts, to find the record."""
        self._spec, self._context, self._blames = spec, context, blames
        self._state = context.states.get(MAIN_STATE)
        self._call = opened(spec.name, spec.function).process
        self._now = 0

    def process(self, records: Records) -> Iterator[pa.RecordBatch]:
        if not records.rows:
            return iter(())
        self._now = 0 if records.time is None else records.time.now
        try:
            ran = self._run(records.batch, records.hashes)
        except Exception as error:
            if not self._blames:
                raise operator_failed(self._spec.name, error, "") from error
            raise batch_failed(self._spec.name, records.batch, self._run_again, error) from error
        if ran.changed and ran.stored is not None and self._state is not None:
            fields = self._spec.fields
            columns = [ran.changed.get(field, alive(ran.stored, field, self._now)) for field in fields]
            written = [np.full(ran.keys.count, field in ran.changed) for field in fields]
            rows, empty = with_expiry(fields, ran.stored, columns, written, self._now)
            values = pa.RecordBatch.from_arrays(rows, schema=ran.stored.schema)
            self._state.update(ran.hashes, ran.keys.batch, values, empty)
        return iter(ran.output)

    def _run(self, batch: pa.RecordBatch, hashes: Hashes) -> _Ran:
        """Calls user code; nothing is stored yet."""
        names = self._spec.keys
        every = pa.RecordBatch.from_arrays([normalise(batch.column(name)) for name in names], list(names))
        grouping = group_rows(hashes, every)
        keys = Keys(every.take(pa.array(grouping.firsts)), grouping.ids)
        of_keys = hashes[grouping.firsts]
        stored = None if self._state is None else self._state.lookup(of_keys, keys.batch).values
        state = Columns(
            {field.name: alive(stored, field, self._now) for field in self._spec.fields} if stored is not None else {}
        )
        returned = self._call(batch, keys, state)
        output = [] if returned is None else fit_batches(returned, self._spec.output_schema, batch)
        changed = {field: self._fitted(field, state, keys.count) for field in self._changed(state)}
        return _Ran(keys, of_keys, stored, output, changed)

    def _run_again(self, batch: pa.RecordBatch) -> _Ran:
        return self._run(batch, hash_columns([batch.column(name) for name in self._spec.keys]))

    def finish(self) -> Iterator[pa.RecordBatch]:
        if self._state is not None and any(field.ttl_us is not None for field in self._spec.fields):
            self._state.expire(ROW_EXPIRES, np.full(len(self._context.groups), self._now + 1, np.int64))
        return iter(())

    def _changed(self, state: Columns) -> list[StateField]:
        written = state.written()
        return [field for field in self._spec.fields if field.name in written]

    def _fitted(self, field: StateField, state: Columns, count: int) -> pa.Array:
        column = getattr(state, field.name)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if not isinstance(column, pa.Array) or len(column) != count:
            got = f"{len(column)} values" if isinstance(column, pa.Array) else type(column).__name__
            raise BadOutput(
                f"the state {field.name!r} was set to {got} for {count} keys", "set a pyarrow array, one value per key"
            )
        try:
            # State refers to its columns until the epoch ends, and the user may reuse the memory of an array before.
            return in_own_memory(cast_column(column, field.kind))
        except pa.ArrowException as error:
            raise BadOutput(
                f"the state {field.name!r} is declared as {field.kind} and was set to {column.type}: {error}",
                "set a column of the declared type, or declare another one",
            ) from error
