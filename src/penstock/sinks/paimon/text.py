"""Texts and bytes that are longer than their column allows: CHAR(n), VARCHAR(n), BINARY(n), VARBINARY(n).

pypaimon takes them as they are, and other engines cut them or refuse the file. So the writer looks at every value, also
inside lists, maps and structs. Lengths of texts are counted in characters (code points), as Paimon counts them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from penstock.errors import SubtaskFailed
from penstock.sinks.paimon import private


@dataclass(frozen=True, slots=True)
class Limit:
    """One column, or a part of one, with a largest length; `steps` lead from the column to the part."""

    column: str
    steps: tuple[str, ...]
    kind: str
    length_max: int

    @property
    def name(self) -> str:
        return ".".join((self.column, *self.steps))


def limits_of(table: private.Table) -> tuple[Limit, ...]:
    """Every limit that the table's columns have."""
    return tuple(
        Limit(column, steps, kind, length)
        for column, kinds in private.text_limits(table).items()
        for steps, kind, length in kinds
    )


def refuse_too_long(rows: pa.RecordBatch, limits: tuple[Limit, ...]) -> None:
    """Raises: `SubtaskFailed` for a value that does not fit its column; nothing is cut."""
    for limit in limits:
        for values in _parts(rows.column(limit.column), limit.steps):
            lengths = pc.utf8_length(values) if pat.is_string(values.type) else pc.binary_length(values)
            longest = pc.max(lengths).as_py()
            if longest is not None and longest > limit.length_max:
                raise _too_long(limit, longest)


def _parts(values: pa.Array, steps: tuple[str, ...]) -> Iterator[pa.Array]:
    """The values inside a column; those of null rows are left out."""
    if not steps:
        yield values
        return
    step, rest = steps[0], steps[1:]
    if pat.is_map(values.type):
        inside = values.filter(values.is_valid())
        yield from _parts(inside.keys if step == "key" else inside.items, rest)
    elif pat.is_list(values.type):
        yield from _parts(values.flatten(), rest)
    else:
        yield from _parts(pc.struct_field(values, [step]), rest)


def _too_long(limit: Limit, longest: int) -> SubtaskFailed:
    unit = "bytes" if "BINARY" in limit.kind else "characters"
    return SubtaskFailed(
        f"a value for column {limit.name} has {longest} {unit}; the table allows {limit.length_max} ({limit.kind})",
        cause="the source or an operator made a longer value than the table's column takes; the sink cuts nothing, and"
        " dead letters are for rows that an operator cannot handle",
        next_step="cut or filter such values before they reach the sink, or alter the table's column",
        column=limit.name,
        length=longest,
        limit=limit.length_max,
    )
