"""Windows as a subtask drives them: slices and watermarks, interrupted anywhere, at another parallelism each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pyarrow as pa

from penstock.operators.base import OperatorContext, OperatorSpec
from penstock.protocol.keygroups import KeyGroupRange, groups_of, range_of
from penstock.records import NO_WATERMARK, Due, Emitted, Records, Side, Time
from penstock.store.memory import MemoryStore
from tests.support.operator_harness import GROUPS, Rows, hashes_of
from tests.support.state_checkpoint import Checkpoint


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
    """The state of an operator over epochs, and what it emitted.

    Each key group reads slices in order and has the watermark of the next one it will read, as the engine has it.
    """

    spec: OperatorSpec
    keys: Sequence[str]
    outputs: list[Rows] = field(default_factory=list)
    late: Rows = field(default_factory=list)
    due: list[Due] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._slices: list[tuple[int, pa.RecordBatch]] = []
        self._read = np.zeros(GROUPS, np.int64)
        self._checkpoints = {
            name: Checkpoint(MemoryStore(), schema, GROUPS) for name, schema in self.spec.state_tables.items()
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for checkpoint in self._checkpoints.values():
            checkpoint.close()

    def run(self, epoch: Epoch) -> None:
        self._slices += epoch.slices
        self.due = []
        emitted: list[Emitted] = []
        for subtask in range(epoch.parallelism):
            if epoch.crash:
                self._run(subtask, epoch, [], keep=False)
            self.due.append(self._run(subtask, epoch, emitted, keep=True))
        self._collect(emitted)

    def _run(self, subtask: int, epoch: Epoch, emitted: list[Emitted], *, keep: bool) -> Due:
        groups = range_of(subtask, epoch.parallelism, GROUPS)
        read = self._read[groups.lo : groups.hi].copy()
        with ExitStack() as opened:
            states = {
                name: opened.enter_context(closing(checkpoint.open(subtask, epoch.parallelism)))
                for name, checkpoint in self._checkpoints.items()
            }
            operator: Any = self.spec.build(OperatorContext(states, subtask, groups, GROUPS))
            left = epoch.yields
            while True:
                time = self._time(groups, read)
                left = self._advance(operator, time, left, emitted)
                number = int(read.min())
                if left <= 0 or number == len(self._slices):
                    break
                mine = np.flatnonzero(read == number) + groups.lo
                emitted += operator.process(_rows_of(self._slices[number][1], self.keys, mine, time))
                read[read == number] += 1
            emitted += operator.finish()
            due: Due = operator.next_due()
            if keep:
                self._read[groups.lo : groups.hi] = read
                for name, state in states.items():
                    change = state.flush(self._checkpoints[name].new_name)
                    self._checkpoints[name].accept(change)
        return due

    def _time(self, groups: KeyGroupRange, read: np.ndarray) -> Time:
        marks = np.array([NO_WATERMARK, *(mark for mark, _ in self._slices)], np.int64)
        return Time(groups, marks[np.minimum(read + 1, len(self._slices))], 0, GROUPS)

    @staticmethod
    def _advance(operator: Any, time: Time, left: int, emitted: list[Emitted]) -> int:
        for item in operator.advance(time):
            emitted.append(item)
            left -= 1
            if left <= 0:
                break
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


def _rows_of(batch: pa.RecordBatch, keys: Sequence[str], groups: np.ndarray, time: Time) -> Records:
    hashes = hashes_of(batch.select(list(keys)))
    rows = np.flatnonzero(np.isin(groups_of(hashes, GROUPS), groups))
    return Records(batch.take(pa.array(rows)), hashes[rows], 0, time)
