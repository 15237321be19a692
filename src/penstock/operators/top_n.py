"""The n best rows of each key, running or per window.

Rows whose value is null do not take part; NaN is larger than any number; of equal values the one that came first is
better. The running kind emits, per epoch, the places that changed hands: written to a table by key and rank, they make
the current list. The windowed kind emits the list of a window when it closes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.display import value_of
from penstock.errors import PipelineError
from penstock.operators.aggregate.accumulators import Accumulator, States
from penstock.operators.aggregate.base import Aggregate
from penstock.operators.aggregate.collecting import lists_of, owners_of
from penstock.operators.aggregate.parts import Pending, Reducer
from penstock.operators.aggregate.reduce import has_order, ordered_image
from penstock.operators.base import KeyedSpec, Operator, OperatorContext, OperatorDefaults, OwnTime, SpecDefaults
from penstock.operators.columns import is_text, is_whole, key_schema, refuse_doubles, require_column
from penstock.operators.grouping import Groups
from penstock.operators.window.window_aggregate import WindowAggregate, WindowOperator
from penstock.records import MAIN_STATE, Due, Emitted, Records, Side, StateSchema, Time
from penstock.state.keys import Flags, KeyColumn, Rows, equal_keys, normalise_keys

RANK = "rank"
_ROWS = "rows"
WINDOW_ROWS = "__penstock_rows"
"""The list of a window, beside the user's keys: no column of theirs has such a name."""


@dataclass(frozen=True, slots=True)
class TopRows(Aggregate):
    """The best rows of a group, as an aggregate: a list of structs, best first."""

    by: str
    n: int
    ascending: bool
    row_type: pa.StructType

    @property
    def kind(self) -> str:
        """Lists that were made by another rule do not fit."""
        return f"top_n/{self.n}/{'smallest' if self.ascending else 'largest'}/{self.by}"

    def bind(self, operator: str, schema: pa.Schema) -> Accumulator:
        del operator, schema
        return TopAccumulator(self)


@dataclass(frozen=True, slots=True)
class TopAccumulator:
    """Keeps lists in order, so a part's rows never need to be looked at again."""

    top: TopRows

    @property
    def state_types(self) -> dict[str, pa.DataType]:
        return {"": self.result_type}

    @property
    def result_type(self) -> pa.DataType:
        return pa.list_(self.top.row_type)

    def partial(self, batch: pa.RecordBatch, groups: Groups) -> list[pa.Array]:
        names = [field.name for field in self.top.row_type]
        rows = pa.StructArray.from_arrays([batch.column(name) for name in names], fields=list(self.top.row_type))
        return self._best(rows, groups.ids, groups.count)

    def combine(self, states: States, groups: Groups) -> list[pa.Array]:
        return self._best(states[0].flatten(), owners_of(states[0], groups), groups.count)

    def result(self, states: States) -> pa.Array:
        return states[0]

    def _best(self, rows: pa.Array, ids: Rows, groups: int) -> list[pa.Array]:
        values = pc.struct_field(rows, self.top.by)
        valid = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        if len(valid) < len(rows):
            values, ids = values.take(pa.array(valid)), ids[valid]
        ranks = ordered_image(values)
        order = np.lexsort((ranks if self.top.ascending else ~ranks, ids))
        return [lists_of(rows, valid[order], ids[order], groups, self.top.n)]


def top_rows(operator: str, schema: pa.Schema, keys: tuple[str, ...], by: str, n: int, *, ascending: bool) -> TopRows:
    """Rows without the columns `keys`, which stand beside the list. Raises: `PipelineError`."""
    if not is_text(by) or not is_whole(n):
        raise PipelineError(
            f"{operator}: top_n({n!r:.50}, by={by!r:.50})",
            cause="top_n takes a whole number of rows and the name of one column",
            next_step='write for example top_n(3, by="price")',
            operator=operator,
        )
    kind = require_column(operator, schema, by, "top_n").type
    if n < 1 or not has_order(kind) or by in keys:
        raise PipelineError(
            f"{operator}: the {n} best by {by!r} of type {kind}",
            cause="top_n takes a number of rows, at least 1, and a column that has an order and is no key; in windows "
            "window_start and window_end are the window's own",
            next_step='write for example top_n(3, by="price")',
            operator=operator,
            column=by,
        )
    row = pa.struct([field for field in schema if field.name not in keys])
    return TopRows(by, n, ascending, row)


@dataclass(frozen=True)
class RunningTop(KeyedSpec):
    """The best rows of everything a key has seen."""

    name: str
    input_schema: pa.Schema
    keys: tuple[str, ...]
    by: str
    n: int
    ascending: bool

    def __post_init__(self) -> None:
        refuse_doubles(self.name, self.output_schema.names, "an output column")

    @property
    def kind(self) -> str:
        return self.top.kind

    @cached_property
    def top(self) -> TopRows:
        return top_rows(self.name, self.input_schema, self.keys, self.by, self.n, ascending=self.ascending)

    @property
    def output_schema(self) -> pa.Schema:
        keys = key_schema(self.name, self.input_schema, self.keys)
        return pa.schema([*keys, pa.field(RANK, pa.int32()), *self.top.row_type])

    @property
    def state_tables(self) -> Mapping[str, StateSchema]:
        keys = key_schema(self.name, self.input_schema, self.keys)
        return {MAIN_STATE: StateSchema(keys, pa.schema([(_ROWS, pa.list_(self.top.row_type))]))}

    @property
    def emits_at_end(self) -> bool:
        return True

    def build(self, context: OperatorContext) -> Operator:
        return RunningTopOperator(self, context)


class RunningTopOperator(OperatorDefaults):
    """Keeps the epoch's best until `finish`."""

    def __init__(self, spec: RunningTop, context: OperatorContext) -> None:
        self._keys, self._schema = list(spec.keys), spec.output_schema
        self._state, self._values_schema = context.state, spec.state_tables[MAIN_STATE].values
        aggregates = {_ROWS: spec.top}
        self._reducer = Reducer(spec.name, aggregates, {_ROWS: TopAccumulator(spec.top)}, context.max_parallelism)
        self._pending = Pending(self._reducer)

    def process(self, records: Records) -> Iterator[pa.RecordBatch]:
        if records.rows:
            keys = normalise_keys(records.batch.select(self._keys), self._keys)
            self._pending.add(self._reducer.reduce(records.hashes, keys, records.batch))
        return iter(())

    def finish(self) -> Iterator[pa.RecordBatch]:
        part = self._pending.take()
        if part is None:
            return
        values, found = self._state.lookup(part.hashes, part.keys)
        part = self._reducer.behind(values, found, part)
        before, after = values.column(0), part.states[0][0]
        owners, ranks, rows = _unpacked(after)
        changed = np.flatnonzero(_changed(before, owners, ranks, rows))
        if not len(changed):
            return
        touched = np.unique(owners[changed])
        indices = pa.array(touched)
        self._state.update(
            part.hashes[touched],
            part.keys.take(indices),
            pa.RecordBatch.from_arrays([after.take(indices)], schema=self._values_schema),
        )
        yield _output(self._schema, part.keys, owners[changed], ranks[changed], rows.take(pa.array(changed)))


def _unpacked(lists: pa.Array) -> tuple[Rows, Rows, pa.Array]:
    """For each item of the lists the list it is in, its rank from 1 on, and the item."""
    counts = lists.value_lengths().fill_null(0).to_numpy().astype(np.int64)
    owners = np.repeat(np.arange(len(lists)), counts)
    ranks = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts) + 1
    return owners, ranks, lists.flatten()


def _changed(before: pa.Array, owners: Rows, ranks: Rows, rows: pa.Array) -> Flags:
    """Whether the list `before` had another row, or none, at each place."""
    counts = before.value_lengths().fill_null(0).to_numpy().astype(np.int64)
    starts = np.cumsum(counts) - counts
    there = np.flatnonzero(ranks <= counts[owners])
    changed = np.ones(len(owners), np.bool_)
    old, places = before.flatten(), starts[owners[there]] + ranks[there] - 1
    changed[there] = ~_equal_rows(old.take(pa.array(places)), rows.take(pa.array(there)))
    return changed


def _equal_rows(left: pa.Array, right: pa.Array) -> Flags:
    numbers = np.arange(len(left))
    equal = np.ones(len(left), np.bool_)
    for a, b in zip(left.flatten(), right.flatten(), strict=True):
        if pa.types.is_nested(a.type):
            # As text NaN equals NaN, however deep.
            pairs = zip(_texts(a), _texts(b), strict=True)
            equal &= np.fromiter((x == y for x, y in pairs), np.bool_, len(left))
        elif not pa.types.is_null(a.type):
            equal &= equal_keys((KeyColumn(a),), numbers, (KeyColumn(b),), numbers)
    return equal


def _texts(values: pa.Array) -> list[str]:
    """Different for different values, also for those that Python has none for."""
    try:
        return list(map(repr, values.to_pylist()))
    except (OverflowError, ValueError):
        return [repr(value_of(value, "surrogateescape")) for value in values]


def _output(schema: pa.Schema, keys: pa.RecordBatch, owners: Rows, ranks: Rows, rows: pa.Array) -> pa.RecordBatch:
    columns = [*keys.take(pa.array(owners)).columns, pa.array(ranks.astype(np.int32)), *rows.flatten()]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True)
class WindowTop(SpecDefaults):
    """The best rows of a key in each window: an aggregate per window, unpacked."""

    name: str
    lists: WindowAggregate
    top: TopRows

    def __post_init__(self) -> None:
        refuse_doubles(self.name, self.output_schema.names, "an output column")

    @property
    def kind(self) -> str:
        return f"{self.lists.kind}/{self.top.kind}"

    @property
    def output_keys(self) -> tuple[str, ...]:
        return self.lists.output_keys

    @property
    def output_schema(self) -> pa.Schema:
        *bounds, _ = self.lists.output_schema
        return pa.schema([*bounds, pa.field(RANK, pa.int32()), *self.top.row_type])

    @property
    def own_time(self) -> OwnTime:
        return self.lists.own_time

    @property
    def side_outputs(self) -> Mapping[str, pa.Schema]:
        return self.lists.side_outputs

    @property
    def state_tables(self) -> Mapping[str, StateSchema]:
        return self.lists.state_tables

    @property
    def timed(self) -> bool:
        return True

    @property
    def emits_at_end(self) -> bool:
        return True

    def build(self, context: OperatorContext) -> Operator:
        return WindowTopOperator(self, self.lists.build(context))


class WindowTopOperator:
    """Unpacks what the windows emit."""

    def __init__(self, spec: WindowTop, lists: WindowOperator) -> None:
        self._schema, self._lists = spec.output_schema, lists

    def process(self, records: Records) -> Iterator[Emitted]:
        return map(self._unpack, self._lists.process(records))

    def finish(self) -> Iterator[Emitted]:
        return map(self._unpack, self._lists.finish())

    def advance(self, time: Time) -> Iterator[Emitted]:
        return map(self._unpack, self._lists.advance(time))

    def next_due(self) -> Due:
        return self._lists.next_due()

    def counters(self) -> Mapping[str, int]:
        return self._lists.counters()

    def _unpack(self, emitted: Emitted) -> Emitted:
        if isinstance(emitted, Side):
            return emitted
        owners, ranks, rows = _unpacked(emitted.column(emitted.num_columns - 1))
        return _output(self._schema, emitted.select(emitted.schema.names[:-1]), owners, ranks, rows)
