"""The n best rows of a group, as an aggregate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PipelineError
from penstock.operators.aggregate.accumulators import Accumulator, NullIsNothing, States
from penstock.operators.aggregate.base import Aggregate
from penstock.operators.aggregate.collecting import lists_of, owners_of
from penstock.operators.aggregate.reduce import has_order, ordered_image
from penstock.operators.columns import is_text, is_whole, require_column
from penstock.operators.grouping import Groups
from penstock.state.keys import Rows


@dataclass(frozen=True, slots=True)
class TopRows(Aggregate):
    """The best rows of a group, as an aggregate: a list of structs, best first."""

    by: str
    n: int
    ascending: bool
    row_type: pa.StructType

    @property
    def kind(self) -> str:
        """Names the rule of the list: a list made by another rule does not fit."""
        return f"top_n/{self.n}/{'smallest' if self.ascending else 'largest'}/{self.by}"

    def bind(self, operator: str, schema: pa.Schema) -> Accumulator:
        del operator, schema
        return TopAccumulator(self)


@dataclass(frozen=True, slots=True)
class TopAccumulator(NullIsNothing):
    """Keeps lists sorted, so that merging two of them needs no new look at rows."""

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
