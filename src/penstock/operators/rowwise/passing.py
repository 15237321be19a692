"""An operator that hands records on as they are: the head of a stage that only joins inputs or feeds a sink."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.operators.base import Operator, OperatorContext, SpecDefaults
from penstock.operators.rowwise.passing_operator import PassOperator


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
        return PassOperator()
