"""Many calls at once for work that waits: lookups, HTTP, models behind an API.

Rows are begun in slices, and each row is one call of the user's coroutine. An ordered operator emits slices in the
order in which they came; an unordered one emits each row when it is done. The operator abandons calls that run at the
barrier. Their rows were not emitted, so they stay in flight and are called again.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa

from penstock.errors import PipelineError
from penstock.operators.base import Operator, OperatorContext
from penstock.operators.calls.calling import BACKOFF_S_MAX, Calls
from penstock.operators.calls.event_loop import AsyncFunction, AsyncRowFunction, opened
from penstock.operators.calls.map_async_operator import CallOperator
from penstock.operators.columns import is_whole
from penstock.operators.failures.careful import CarefulSpec
from penstock.operators.failures.failing import operator_failed

CONCURRENCY_MAX = 100_000


@dataclass(frozen=True, eq=False)  # its identity is what an opened function belongs to
class MapAsync(CarefulSpec):
    """A coroutine from one row to one row, both as dicts."""

    name: str
    function: AsyncRowFunction
    input_schema: pa.Schema
    output_schema: pa.Schema
    concurrency: int = 100
    timeout_s: float = 30.0
    retries: int = 3
    ordered: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.function, type) and issubclass(self.function, AsyncFunction):
            object.__setattr__(self, "function", self._instance(self.function))
        function = self.function.__call__ if isinstance(self.function, AsyncFunction) else self.function
        if not inspect.iscoroutinefunction(function) and not inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__ is as good
        ):
            self._refuse(
                f"map_async got {function!r:.100}",
                "the argument is not an async function",
                "write `async def` in front of it, or use flat_map for code that does not wait",
            )
        if isinstance(self.function, AsyncFunction) and not inspect.iscoroutinefunction(self.function.open):
            self._refuse(
                f"{type(self.function).__name__}.open is not async", "it is awaited", "write async def open(self)"
            )
        if not is_whole(self.concurrency) or not 0 < self.concurrency <= CONCURRENCY_MAX:
            self._refuse(
                f"concurrency={self.concurrency!r}",
                "it is the number of calls that may run at once in one subtask",
                f"give a whole number from 1 to {CONCURRENCY_MAX:,}",
            )
        if not is_whole(self.retries) or self.retries < 0:
            self._refuse(
                f"retries={self.retries!r}",
                "it is how often a failed call is repeated",
                "give a whole number from 0 on",
            )
        if self.timeout_s <= 0:
            self._refuse("timeout is 0", "no call could end in time", 'give a duration such as timeout="5 s"')

    def _instance(self, kind: type[AsyncFunction]) -> AsyncFunction:
        try:
            inspect.signature(kind).bind()
        except TypeError:
            seen = f"map_async got the class {kind.__name__}{inspect.signature(kind)}"
            self._refuse(seen, "it needs arguments", f"pass an instance: {kind.__name__}(...)")
        return kind()

    def _refuse(self, seen: str, cause: str, next_step: str) -> NoReturn:
        raise PipelineError(f"{self.name}: {seen}", cause=cause, next_step=next_step, operator=self.name)

    @property
    def kind(self) -> str:
        return "map_async"

    @property
    def concurrent(self) -> bool:
        return True

    @property
    def keeps_order(self) -> bool:
        return self.ordered

    @property
    def step_s_max(self) -> float:
        return (self.retries + 1) * (self.timeout_s + BACKOFF_S_MAX)

    def build(self, context: OperatorContext) -> Operator:
        try:
            function = opened(self, self.function, self.timeout_s)
        except Exception as error:
            raise operator_failed(self.name, error, "") from error
        calls = Calls(
            function,
            (self.input_schema, self.output_schema),
            concurrency=self.concurrency,
            timeout_s=self.timeout_s,
            retries=self.retries,
            clock=context.clock,
        )
        return CallOperator(
            self.name,
            self.output_schema,
            calls,
            self.letters(self.name, context),
            concurrency=self.concurrency,
            ordered=self.ordered,
            clock=context.clock,
        )
