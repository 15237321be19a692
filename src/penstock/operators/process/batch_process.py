"""User code over whole slices with state per key: Arrow in, Arrow out, no Python per row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from penstock.operators.base import KeyedSpec, Operator, OperatorContext
from penstock.operators.columns import key_schema
from penstock.operators.failures.careful import CarefulSpec
from penstock.operators.failures.careful_operator import careful
from penstock.operators.process.batch_process_operator import SliceOperator
from penstock.operators.process.declare import Declaration, Method, Resolve
from penstock.operators.process.slice_state import Keys
from penstock.operators.process.user_state import StateField, state_schema
from penstock.records import MAIN_STATE, StateSchema


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

    It returns a record batch, a table, an iterable of them, or None. The number of rows in a slice depends on time and
    load, so results must not depend on it. Rows of a key are in order.
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
        letters = self.letters(self.name, context)
        return careful(SliceOperator(self, context, blames=letters is None), letters)
