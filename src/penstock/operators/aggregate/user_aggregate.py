"""Aggregates that users write, over whole columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import PipelineError
from penstock.operators.aggregate.accumulators import States
from penstock.operators.aggregate.base import Aggregate
from penstock.operators.failures.failing import BadOutput, operator_failed
from penstock.operators.grouping import Groups
from penstock.operators.values.convert import arrow_values, in_own_memory
from penstock.operators.values.lossless import cast_column

Column: TypeAlias = "pa.Array | npt.NDArray[Any] | list[Any]"


class UserAggregate(Aggregate):
    """Subclass this for an aggregate of your own; it works on all keys of a slice at once.

    `groups.ids` (numpy) has the group of each row, in order of arrival, `groups.count` says how many groups there are;
    each has a row. Columns are Arrow arrays or what ``pa.array`` takes, one value per group.
    """

    state: ClassVar[Mapping[str, pa.DataType]]
    """The columns of a group's state."""
    output: ClassVar[pa.DataType]
    """The type of the result."""

    def update(self, rows: pa.RecordBatch, groups: Groups) -> Mapping[str, Column]:
        """The state of each group, from its rows."""
        raise NotImplementedError

    def merge(self, states: pa.RecordBatch, groups: Groups) -> Mapping[str, Column]:
        """The state of each group, from several of them, oldest first."""
        raise NotImplementedError

    def result(self, states: pa.RecordBatch) -> Column:
        """The result of each row of state."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{type(self).__name__}()"

    def bind(self, operator: str, schema: pa.Schema) -> UserAccumulator:
        """Raises: `PipelineError`."""
        del schema
        state, output = getattr(self, "state", None), getattr(self, "output", None)
        good = isinstance(state, Mapping) and state and all(map(_can_be_stored, state.values()))
        if not good or not isinstance(output, pa.DataType):
            raise PipelineError(
                f"{operator}: {self} has state {state!r:.100} and output {output!r:.100}",
                cause="both are declared in the class, as Arrow types of values, not of dictionaries",
                next_step='write for example state = {"n": pa.int64()} and output = pa.int64()',
                operator=operator,
            )
        return UserAccumulator(operator, self)


@dataclass(frozen=True, slots=True)
class UserAccumulator:
    """Runs a `UserAggregate` and checks its results."""

    operator: str
    aggregate: UserAggregate

    @property
    def null_is_nothing(self) -> bool:
        """The user's code says what null means."""
        return False

    @property
    def state_types(self) -> dict[str, pa.DataType]:
        return {f"__{name}": kind for name, kind in self.aggregate.state.items()}

    @property
    def result_type(self) -> pa.DataType:
        return self.aggregate.output

    def partial(self, batch: pa.RecordBatch, groups: Groups) -> list[pa.Array]:
        return self._states(groups.count, lambda: self.aggregate.update(batch, groups))

    def combine(self, states: States, groups: Groups) -> list[pa.Array]:
        return self._states(groups.count, lambda: self.aggregate.merge(self._batch(states), groups))

    def result(self, states: States) -> pa.Array:
        try:
            return _column(self.aggregate.result(self._batch(states)), "result", self.result_type, len(states[0]))
        except Exception as error:
            raise operator_failed(self.operator, error, "") from error

    def _batch(self, states: States) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(list(states), names=list(self.aggregate.state))

    def _states(self, count: int, compute: Callable[[], object]) -> list[pa.Array]:
        wanted = self.aggregate.state
        try:
            given = compute()
            if not isinstance(given, Mapping) or given.keys() != wanted.keys():
                got = list(given) if isinstance(given, Mapping) else type(given).__name__
                raise BadOutput(f"wanted the state {list(wanted)}, got {got}", "return a dict with exactly these names")
            return [_column(given[name], name, kind, count) for name, kind in wanted.items()]
        except Exception as error:
            raise operator_failed(self.operator, error, "") from error


def _can_be_stored(kind: object) -> bool:
    return isinstance(kind, pa.DataType) and not pt.is_dictionary(kind)


def _column(given: Column, name: str, kind: pa.DataType, count: int) -> pa.Array:
    if len(given) != count:
        raise BadOutput(f"{name} has {len(given)} values for {count} groups", "return one value per group")
    got: object = type(given).__name__
    try:
        plain = given if isinstance(given, pa.Array) else pa.array(given, from_pandas=False)
        got = plain.type
        _check_fields(got, kind)
        if isinstance(given, list):
            return arrow_values(given, kind)
        # Parts and state refer to it until the epoch ends, and the user may reuse the memory of an array before.
        return in_own_memory(cast_column(plain, kind))
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise BadOutput(f"{name} is declared as {kind}, got {got}: {error}", "return the declared type") from error


def _check_fields(got: pa.DataType, kind: pa.DataType) -> None:
    """Refuses structs with missing fields, which Arrow would fill with nulls."""
    if pt.is_struct(got) and pt.is_struct(kind) and {part.name for part in got} != {part.name for part in kind}:
        raise ValueError("the fields have other names")
