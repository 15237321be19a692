"""An operator that hands records on as they are: the head of a stage that only joins inputs or feeds a sink."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.operators.base import Operator, Records, StateSchema

if TYPE_CHECKING:
    from penstock.state.keyed import KeyedState


@dataclass(frozen=True, slots=True)
class Pass:
    """Records in, the same records out."""

    name: str
    output_schema: pa.Schema

    @property
    def kind(self) -> str:
        return "pass"

    @property
    def state_schema(self) -> StateSchema | None:
        return None

    @property
    def emits_at_end(self) -> bool:
        return False

    def build(self, state: KeyedState | None) -> Operator:
        assert state is None
        return _Passing()


class _Passing:
    def process(self, records: Records) -> Iterator[pa.RecordBatch]:
        yield records.batch

    def finish(self) -> Iterator[pa.RecordBatch]:
        return iter(())
