"""The protocol between an operator and the subtask that steps it.

A *spec* is part of the graph: a frozen value that travels to the subtasks and says names and schemas. It builds the
*operator*, which lives for one subtask attempt. The subtask measures how long each `process` call takes and cuts the
next slice accordingly, so an operator never looks at the clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from penstock.state.keyed import KeyedState


@dataclass(frozen=True, slots=True)
class Records:
    """A slice of one input: the user's columns, and the 64-bit key hash of each row."""

    batch: pa.RecordBatch
    hashes: npt.NDArray[np.int64]

    @property
    def rows(self) -> int:
        return self.batch.num_rows


@dataclass(frozen=True, slots=True)
class StateSchema:
    """Columns of an operator's keyed state."""

    keys: pa.Schema
    values: pa.Schema


class Operator(Protocol):
    """One attempt's running operator."""

    def process(self, records: Records) -> Iterator[pa.RecordBatch]:
        """Takes one slice, yields output batches in the output schema."""
        ...

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Called once, after the last slice of the epoch; writes all changes into the state."""
        ...


class OperatorSpec(Protocol):
    """An operator as the graph knows it."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def output_schema(self) -> pa.Schema: ...
    @property
    def state_schema(self) -> StateSchema | None:
        """None for an operator without state."""
        ...

    @property
    def emits_at_end(self) -> bool:
        """Whether output comes from `finish`: then what follows becomes a stage of its own, so that slow code
        behind it stays interruptible."""
        ...

    def build(self, state: KeyedState | None) -> Operator: ...
