"""User code over whole slices with state per key: Arrow in, Arrow out, no Python per row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from penstock.operators.base import KeyedSpec, Operator, OperatorContext, OperatorDefaults
from penstock.operators.columns import key_schema
from penstock.operators.failures.careful import careful
from penstock.operators.failures.deadletters import CarefulSpec
from penstock.operators.failures.failing import BadOutput, operator_failed
from penstock.operators.grouping import group_rows
from penstock.operators.process.declare import Declaration, Method, Resolve
from penstock.operators.process.process_operator import opened
from penstock.operators.process.user_state import ROW_EXPIRES, StateField, alive, state_schema, with_expiry
from penstock.operators.values.convert import fit_batches, in_own_memory
from penstock.operators.values.lossless import cast_column
from penstock.records import MAIN_STATE, Records, StateSchema
from penstock.state.keys import Rows, normalise


@dataclass(frozen=True, slots=True)
class Keys:
    """The distinct keys of a slice."""

    batch: pa.RecordBatch
    """One row per key."""
    numbers: Rows
    """For each row of the slice the number of its key."""

    @property
    def count(self) -> int:
        return self.batch.num_rows


class BatchProcess:
    """User code that sees a slice of rows of many keys at once.

    State is a column per declared value, aligned with the distinct keys of the slice; setting the attribute to another
    column stores it::

        class Totals(pen.BatchProcess):
            output = "user bigint, total bigint"
            total = pen.value_state("bigint")

            def process(self, batch, keys, state):
                added = np.bincount(keys.numbers, batch["amount"].to_numpy(), keys.count).astype(np.int64)
                state.total = pc.add(state.total.fill_null(0), pa.array(added))
                return pa.RecordBatch.from_arrays([keys.batch["user"], state.total], ["user", "total"])

    It returns a record batch, a table, an iterable of them, or None. How many rows a slice has depends on time and
    load, so results must not. Rows of a key stand in their order.
    """

    output: ClassVar[str | pa.Schema | Any]

    def open(self) -> None:
        """Called once before the first rows, in every subtask and again after every failure."""

    def process(self, batch: pa.RecordBatch, keys: Keys, state: Any) -> Any:
        """Handles a slice."""
        raise NotImplementedError


_PROCESS = Method("process", (4,), "process(self, batch, keys, state)", may_yield=True)


@dataclass(frozen=True)
class SliceProcess(KeyedSpec, CarefulSpec):
    """A `BatchProcess` with its types resolved; use `declare` to make one."""

    name: str
    input_schema: pa.Schema
    keys: tuple[str, ...]
    function: BatchProcess | type[BatchProcess]
    output_schema: pa.Schema
    fields: tuple[StateField, ...]

    @property
    def gathers(self) -> bool:
        return True

    @classmethod
    def declare(
        cls,
        name: str,
        input_schema: pa.Schema,
        keys: tuple[str, ...],
        function: BatchProcess | type[BatchProcess],
        *,
        resolve: Resolve,
    ) -> SliceProcess:
        """Checks the user's class.

        Raises: `PipelineError`.
        """
        declared = Declaration.of(name, function, BatchProcess, (_PROCESS,), resolve)
        for part in ("sides", "on_timer"):
            if hasattr(declared.kind, part):
                declared.refuse(
                    f"{declared.kind.__name__} has {part}",
                    "use pen.KeyedProcess for timers and side outputs",
                    cause="code over whole slices has neither",
                )
        fields = declared.fields(beside=key_schema(name, input_schema, keys).names)
        return cls(name, input_schema, keys, function, declared.output(), fields)

    @property
    def kind(self) -> str:
        return "batch_process"

    @property
    def state_tables(self) -> Mapping[str, StateSchema]:
        if not self.fields:
            return {}
        keys = key_schema(self.name, self.input_schema, self.keys)
        return {MAIN_STATE: StateSchema(keys, state_schema(self.fields), may_grow=True)}

    def build(self, context: OperatorContext) -> Operator:
        return careful(_SliceOperator(self, context), self.letters(self.name, context))


class Columns:
    """State of the keys of a slice as columns."""

    def __init__(self, columns: Mapping[str, pa.Array]) -> None:
        object.__setattr__(self, "_columns", dict(columns))
        object.__setattr__(self, "_written", set())

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_columns"][name]
        except KeyError:
            raise AttributeError(f"there is no state {name!r}; declare {name} = pen.value_state(type)") from None

    def __setattr__(self, name: str, column: object) -> None:
        getattr(self, name)
        self.__dict__["_columns"][name] = column
        self.__dict__["_written"].add(name)

    def written(self) -> Mapping[str, object]:
        return {name: self.__dict__["_columns"][name] for name in self.__dict__["_written"]}


class _SliceOperator(OperatorDefaults):
    """One subtask attempt's instance of a `BatchProcess`."""

    def __init__(self, spec: SliceProcess, context: OperatorContext) -> None:
        self._spec, self._context = spec, context
        self._state = context.states.get(MAIN_STATE)
        self._call = opened(spec.name, spec.function).process
        self._now = 0

    def process(self, records: Records) -> Iterator[pa.RecordBatch]:
        if not records.rows:
            return iter(())
        self._now = 0 if records.time is None else records.time.now
        names = self._spec.keys
        columns = [normalise(records.batch.column(name)) for name in names]
        every = pa.RecordBatch.from_arrays(columns, list(names))
        grouping = group_rows(records.hashes, every)
        keys = Keys(every.take(pa.array(grouping.firsts)), grouping.ids)
        hashes = records.hashes[grouping.firsts]
        stored = None if self._state is None else self._state.lookup(hashes, keys.batch).values
        state = Columns(
            {field.name: alive(stored, field, self._now) for field in self._spec.fields} if stored is not None else {}
        )
        try:
            returned = self._call(records.batch, keys, state)
            output = [] if returned is None else fit_batches(returned, self._spec.output_schema, records.batch)
            changed = {field: self._fitted(field, state, keys.count) for field in self._changed(state)}
        except Exception as error:
            raise operator_failed(self._spec.name, error, "") from error
        if changed and stored is not None and self._state is not None:
            fields = self._spec.fields
            columns = [changed.get(field, alive(stored, field, self._now)) for field in fields]
            written = [np.full(keys.count, field in changed) for field in fields]
            rows, empty = with_expiry(fields, stored, columns, written, self._now)
            values = pa.RecordBatch.from_arrays(rows, schema=stored.schema)
            self._state.update(hashes, keys.batch, values, empty)
        return iter(output)

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
            # State refers to its columns until the epoch ends; what the user's array lies in may be used again before.
            return in_own_memory(cast_column(column, field.kind))
        except pa.ArrowException as error:
            raise BadOutput(
                f"the state {field.name!r} is declared as {field.kind} and was set to {column.type}: {error}",
                "set a column of the declared type, or declare another one",
            ) from error
