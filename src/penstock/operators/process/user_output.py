"""What user code emits, row by row, as batches of the declared columns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from penstock.operators.failures.failing import BadOutput
from penstock.operators.values.convert import batch_of_rows, check_row, first_misfit
from penstock.operators.values.copies import row_copier
from penstock.records import Emitted, Side


class Misfit(Exception):
    """Rows that do not fit the declared columns, and the number of the call that emitted the first of them."""

    def __init__(self, call: int, error: BadOutput) -> None:
        super().__init__(str(error))
        self.call, self.error = call, error


class RowCollector:
    """Gathers copies of the rows that user code emits."""

    __slots__ = ("_copy", "_ends", "_names", "_schema", "_sides", "rows")

    def __init__(self, schema: pa.Schema, sides: Mapping[str, pa.Schema] = MappingProxyType({})) -> None:
        self._schema, self._names = schema, frozenset(schema.names)
        self._sides = {name: RowCollector(side) for name, side in sides.items()}
        self._copy = row_copier(schema)
        self._ends: list[int] = []
        self.rows: list[Mapping[str, Any]] = []

    def emit(self, **columns: Any) -> None:
        if columns.keys() != self._names:
            check_row(columns, self._names)
        self.rows.append(columns if self._copy is dict else self._copy(columns))

    def emit_many(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            check_row(row, self._names)
            self.rows.append(self._copy(row))

    def side(self, output: str) -> RowCollector:
        """Where rows of a side output go."""
        try:
            return self._sides[output]
        except KeyError:
            declared = ", ".join(self._sides) or "none"
            advice = f'declare sides = {{"{output}": "user bigint, …"}} in the class body'
            raise BadOutput(f"there is no side output {output!r}; declared: {declared}", advice) from None

    def end_call(self) -> None:
        """Ends one call of user code; the next rows belong to another one."""
        self._ends.append(len(self.rows))
        for side in self._sides.values():
            side.end_call()

    def emitted(self) -> Iterator[Emitted]:
        """Raises: `Misfit`."""
        if self.rows:
            yield self.batch()
        for name, side in self._sides.items():
            if side.rows:
                yield Side(name, side.batch())

    def batch(self) -> pa.RecordBatch:
        """The rows of this output alone. Raises: `Misfit`."""
        try:
            return batch_of_rows(self.rows, self._schema)
        except BadOutput as error:
            raise Misfit(bisect_right(self._ends, first_misfit(self.rows, self._schema)), error) from error
