"""An operator that hands records on as they are: the head of a stage that only joins inputs or feeds a sink."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.operators.base import Operator, OperatorContext, OperatorDefaults, SpecDefaults
from penstock.records import Records


@dataclass(frozen=True)
class Pass(SpecDefaults):
    """Records in, the same records out."""

    name: str
    output_schema: pa.Schema

    @property
    def kind(self) -> str:
        return "pass"

    @property
    def hands_on(self) -> bool:
        return True

    @property
    def does_nothing(self) -> bool:
        return True

    def build(self, context: OperatorContext) -> Operator:
        del context
        return _Passing()


class _Passing(OperatorDefaults):
    def process(self, records: Records) -> Iterator[pa.RecordBatch]:
        yield records.batch
