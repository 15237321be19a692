"""Makes an operator, whose slices are all or nothing, skip the rows that fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from penstock.errors import OperatorFailed
from penstock.operators.base import Operator, TimedOperator
from penstock.operators.failures.deadletters import Letters
from penstock.records import Due, Emitted, Records, Time


def careful(operator: Operator, letters: Letters | None, *, told_elsewhere: frozenset[int] = frozenset()) -> Operator:
    """The operator itself, unless it has dead letters. Another subtask writes those of the inputs `told_elsewhere`."""
    return operator if letters is None else CarefulOperator(operator, letters, told_elsewhere)


class CarefulOperator:
    """Cuts a failing slice into halves, in the order of arrival, down to single rows. Failing rows become dead letters.

    A part that fails changes no state, so failing rows leave no trace in it.
    """

    def __init__(self, operator: Operator, letters: Letters, told_elsewhere: frozenset[int]) -> None:
        self._operator, self._letters, self._told_elsewhere = operator, letters, told_elsewhere

    def process(self, records: Records) -> Iterator[Emitted]:
        told = records.port not in self._told_elsewhere
        self._letters.tried += records.rows if told else 0
        waiting = [records]
        while waiting:
            part = waiting.pop()
            try:
                emitted = list(self._operator.process(part))
            except OperatorFailed as failure:
                if part.rows > 1:
                    middle = part.rows // 2
                    waiting += [part.slice(middle), part.slice(0, middle)]
                elif told:
                    self._letters.add(part.batch, 0, _cause(failure))
            else:
                yield from emitted
        yield from self._letters.take()

    def finish(self) -> Iterator[Emitted]:
        return self._operator.finish()

    def advance(self, time: Time) -> Iterator[Emitted]:
        """A timer has no record to send away, so its exception stops the query."""
        return cast("TimedOperator", self._operator).advance(time)

    def next_due(self) -> Due:
        return cast("TimedOperator", self._operator).next_due()

    def counters(self) -> Mapping[str, int]:
        return {**self._operator.counters(), **self._letters.counters()}


def _cause(failure: OperatorFailed) -> BaseException:
    """The exception of user code, or what is wrong with its result."""
    cause = failure.__cause__
    if cause is None:
        return failure
    return cause if type(cause).__name__ == failure.fields["exception"] else getattr(cause, "error", cause)
