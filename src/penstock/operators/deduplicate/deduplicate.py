"""Emits the first row of each key at once and drops later ones, for ever or within a span of event time.

With a span the rule is about event times alone: a row is a duplicate if its key has a kept row before it in the order
of arrival whose event time plus the span is not before its own. Rows behind the watermark leave as late rows. So
dropping a key once the watermark has passed its span changes no result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa

from penstock.operators.base import KeyedSpec, Operator, OperatorContext
from penstock.operators.columns import key_schema
from penstock.operators.deduplicate.deduplicate_operator import UNTIL, DeduplicateOperator
from penstock.records import LATE, MAIN_STATE, StateSchema


@dataclass(frozen=True)
class Deduplicate(KeyedSpec):
    """Rows in, the first of each key out. `columns` are the keys, and what else tells records apart."""

    name: str
    output_schema: pa.Schema
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    event_time: str | None = None
    within_us: int | None = None

    @property
    def kind(self) -> str:
        """Says whether keys are kept for ever, because the state of both kinds differs.

        A changed span fits the checkpoint: stored keys keep their old span.
        """
        return "deduplicate" if self.within_us is None else "deduplicate/within"

    @property
    def hands_on(self) -> bool:
        return True

    @property
    def side_outputs(self) -> Mapping[str, pa.Schema]:
        return MappingProxyType({LATE: self.output_schema} if self.within_us is not None else {})

    @property
    def state_tables(self) -> Mapping[str, StateSchema]:
        values = pa.schema([(UNTIL, pa.int64())])
        return {MAIN_STATE: StateSchema(key_schema(self.name, self.output_schema, self.columns), values)}

    def build(self, context: OperatorContext) -> Operator:
        return DeduplicateOperator(self, context)
