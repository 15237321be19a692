"""Windows as a subtask drives them: slices and watermarks, interrupted anywhere, at another parallelism each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pyarrow as pa

from penstock.operators.base import NO_WATERMARK, Due, Emitted, OperatorContext, OperatorSpec, Records, Side, Time
from penstock.protocol.keygroups import KeyGroupRange, groups_of, range_of
from penstock.store.memory import MemoryStore
from tests.unit.operator_harness import GROUPS, Rows, hashes_of
from tests.unit.state_checkpoint import Checkpoint


@dataclass(frozen=True)
class Epoch:
    """Slices, each with the watermark it arrives at; `yields` lets `advance` go on so often, then the barrier fires."""

    parallelism: int
    slices: Sequence[tuple[int, pa.RecordBatch]]
    yields: int = 1_000_000
    crash: bool = False
    """Runs the epoch once for nothing before."""


@dataclass
class Windows:
    """The state of an operator over epochs, and what it emitted."""

    spec: OperatorSpec
    keys: Sequence[str]
    outputs: list[Rows] = field(default_factory=list)
    late: Rows = field(default_factory=list)
    due: list[Due] = field(default_factory=list)
    watermark: int = NO_WATERMARK

    def __post_init__(self) -> None:
        self._checkpoints = {
            name: Checkpoint(MemoryStore(), schema, GROUPS) for name, schema in self.spec.state_tables.items()
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for checkpoint in self._checkpoints.values():
            checkpoint.close()

    def run(self, epoch: Epoch) -> None:
        self.due = []
        for subtask in range(epoch.parallelism):
            if epoch.crash:
                self._run(subtask, epoch, keep=False)
            self.due.append(self._run(subtask, epoch, keep=True))
        self.watermark = max([self.watermark, *(mark for mark, _ in epoch.slices)])

    def _run(self, subtask: int, epoch: Epoch, *, keep: bool) -> Due:
        groups = range_of(subtask, epoch.parallelism, GROUPS)
        emitted: list[Emitted] = []
        with ExitStack() as opened:
            states = {
                name: opened.enter_context(closing(checkpoint.open(subtask, epoch.parallelism)))
                for name, checkpoint in self._checkpoints.items()
            }
            operator: Any = self.spec.build(OperatorContext(states, subtask, groups, GROUPS))
            watermark = self.watermark
            left = self._advance(operator, _time(groups, watermark), epoch.yields, emitted)
            for mark, batch in epoch.slices:
                if mark > watermark:
                    watermark = mark
                    left = self._advance(operator, _time(groups, watermark), left, emitted)
                emitted += operator.process(_mine(batch, self.keys, groups, _time(groups, watermark)))
            emitted += operator.finish()
            due: Due = operator.next_due()
            if keep:
                for name, state in states.items():
                    change = state.flush(self._checkpoints[name].new_name)
                    self._checkpoints[name].accept(change, groups)
        if keep:
            self._collect(emitted)
        return due

    @staticmethod
    def _advance(operator: Any, time: Time, left: int, emitted: list[Emitted]) -> int:
        for item in operator.advance(time):
            emitted.append(item)
            left -= 1
            if left <= 0:
                return 1
        return left

    def _collect(self, emitted: Sequence[Emitted]) -> None:
        rows: Rows = []
        for item in emitted:
            batch = item.batch if isinstance(item, Side) else item
            batch.validate(full=True)
            if isinstance(item, Side):
                assert batch.schema.equals(self.spec.side_outputs[item.output])
                self.late += batch.to_pylist()
            else:
                assert batch.schema.equals(self.spec.output_schema)
                rows += batch.to_pylist()
        self.outputs.append(rows)

    def rows(self) -> Rows:
        return [row for rows in self.outputs for row in rows]


def _time(groups: KeyGroupRange, watermark: int) -> Time:
    return Time(groups, np.full(len(groups), watermark, np.int64), 0, GROUPS)


def _mine(batch: pa.RecordBatch, keys: Sequence[str], groups: KeyGroupRange, time: Time) -> Records:
    hashes = hashes_of(batch.select(list(keys)))
    numbers = groups_of(hashes, GROUPS)
    rows = np.flatnonzero((numbers >= groups.lo) & (numbers < groups.hi))
    return Records(batch.take(pa.array(rows)), hashes[rows], 0, time)


def batches(rows: Rows, schema: pa.Schema, size: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), size):
        yield pa.RecordBatch.from_pylist(rows[start : start + size], schema=schema)
