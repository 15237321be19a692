"""Interval join of two keyed streams in event time: its checked form in the graph.

A left and a right row with equal keys are joined if ``left.time + lower <= right.time <= left.time + upper``. Null is
no key here, as in SQL: such rows match nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa

from penstock.errors import PipelineError
from penstock.operators.base import Operator, OperatorContext, OwnTime, SpecDefaults
from penstock.operators.columns import key_schema, refuse_doubles
from penstock.operators.join.join_buffer import buffer_schema, deadline_schema, slot_shift
from penstock.operators.join.join_operator import JoinOperator
from penstock.records import StateSchema

How: TypeAlias = Literal["inner", "left", "right", "full"]
HOWS: tuple[How, ...] = ("inner", "left", "right", "full")
LATE = ("late_left", "late_right")
SIDES = ("left", "right")


@dataclass(frozen=True, slots=True)
class JoinSide:
    """One input: its columns, its key, its event time, and how its columns are called in the result."""

    schema: pa.Schema
    keys: tuple[str, ...]
    event_time: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Join(SpecDefaults):
    """Rows of two inputs in, pairs out; use `declare` to make one. Times are in microseconds."""

    name: str
    left: JoinSide
    right: JoinSide
    lower: int
    upper: int
    how: How
    output_schema: pa.Schema
    event_time_column: str | None

    @classmethod
    def declare(
        cls,
        name: str,
        left: JoinSide,
        right: JoinSide,
        *,
        lower: int,
        upper: int,
        how: str,
        suffixes: Sequence[str],
        event_time: object,
    ) -> Join:
        """Names the columns of the result. Raises: `PipelineError`."""
        if how not in HOWS:
            raise _refused(name, f"how is {how!r}", f"use one of {', '.join(HOWS)}")
        if lower > upper:
            raise _refused(name, f"within is from {lower} us to {upper} us", "give the earlier bound first")
        wanted, found = (key_schema(name, side.schema, side.keys) for side in (left, right))
        if wanted.types != found.types:
            seen = f"the left key has types {wanted.types}, the right one {found.types}"
            raise _refused(name, seen, "use the same types")
        if event_time is not None and not isinstance(event_time, str):
            raise _refused(name, f"event_time is {event_time!r}", "give the name of a column to add")
        left, right = _named(name, left, right, suffixes)
        fields = [*_fields(left, optional=how in ("right", "full")), *_fields(right, optional=how in ("left", "full"))]
        if event_time is not None:
            fields.append(pa.field(event_time, left.schema.field(left.event_time).type))
        refuse_doubles(name, [field.name for field in fields], "a column of the result")
        return cls(name, left, right, lower, upper, how, pa.schema(fields), event_time)

    @property
    def kind(self) -> str:
        """Names the length of the slots of time. Rows that are stored by other slots would not be found."""
        return f"join/{slot_shift(self.upper - self.lower)}"

    @property
    def output_keys(self) -> tuple[str, ...]:
        """The key of the result, if it has the same name on both sides."""
        return self.left.keys if self.left.keys == self.right.keys else ()

    @property
    def own_time(self) -> OwnTime:
        return OwnTime(self.event_time_column)

    @property
    def outer(self) -> tuple[bool, bool]:
        """Whether rows of the left and of the right without a match are emitted."""
        return self.how in ("left", "full"), self.how in ("right", "full")

    @property
    def spans(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Bounds from the time of a left row to those of matching right rows, and the other way round."""
        return (self.lower, self.upper), (-self.upper, -self.lower)

    @property
    def side_outputs(self) -> Mapping[str, pa.Schema]:
        return {LATE[0]: self.left.schema, LATE[1]: self.right.schema}

    @property
    def state_tables(self) -> Mapping[str, StateSchema]:
        return dict(self._tables())

    def _tables(self) -> Iterator[tuple[str, StateSchema]]:
        for label, side, outer in zip(SIDES, (self.left, self.right), self.outer, strict=True):
            keys = key_schema(self.name, side.schema, side.keys)
            yield label, buffer_schema(keys, side.schema)
            if outer:
                yield f"{label}_deadlines", deadline_schema(keys)

    @property
    def computed(self) -> Mapping[str, str]:
        """By which time rows of each side are stored. Those stored by another one would not be found."""
        return {label: f"by {side.event_time}" for label, side in zip(SIDES, (self.left, self.right), strict=True)}

    @property
    def timed(self) -> bool:
        return any(self.outer)

    @property
    def emits_at_end(self) -> bool:
        return self.timed

    def build(self, context: OperatorContext) -> Operator:
        return JoinOperator(self, context)


def _named(operator: str, left: JoinSide, right: JoinSide, suffixes: Sequence[str]) -> tuple[JoinSide, JoinSide]:
    """A key of the same name on both sides becomes one column. Other columns of the same name get suffixes."""
    match suffixes:
        case (str(first), str(second)) if first != second:
            pass
        case _:
            raise _refused(operator, f"suffixes are {suffixes!r}", 'give two different ones, such as ("", "_right")')
    common = left.keys if left.keys == right.keys else ()
    clashing = set(left.schema.names) & set(right.schema.names) - set(common)

    def renamed(side: JoinSide, suffix: str) -> tuple[str, ...]:
        return tuple(name + suffix if name in clashing else name for name in side.schema.names)

    right_names = tuple(
        "" if name in common else new for name, new in zip(right.schema.names, renamed(right, suffixes[1]), strict=True)
    )
    return (
        JoinSide(left.schema, left.keys, left.event_time, renamed(left, suffixes[0])),
        JoinSide(right.schema, right.keys, right.event_time, right_names),
    )


def _fields(side: JoinSide, *, optional: bool) -> Iterator[pa.Field]:
    for field, name in zip(side.schema, side.names, strict=True):
        if name:
            yield field.with_name(name).with_nullable(field.nullable or optional)


def _refused(operator: str, seen: str, next_step: str) -> PipelineError:
    return PipelineError(f"{operator}: {seen}", cause="the join cannot be made", next_step=next_step, operator=operator)
