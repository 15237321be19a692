"""Runs operators as a subtask does: slices, state that is flushed and opened again, another parallelism each epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.hashing import hash_columns
from penstock.operators.base import OperatorContext, OperatorSpec
from penstock.protocol.keygroups import groups_of, range_of
from penstock.records import MAIN_STATE, Records
from penstock.state.keys import normalise_keys
from penstock.store.memory import MemoryStore
from tests.support.state_checkpoint import Checkpoint

GROUPS = 8
Rows = list[dict[str, Any]]
Hashes = Callable[[pa.RecordBatch], np.ndarray]


def hashes_of(keys: pa.RecordBatch) -> np.ndarray:
    return hash_columns(normalise_keys(keys, keys.schema.names).columns)


def one_hash(keys: pa.RecordBatch) -> np.ndarray:
    """The worst hash: every key collides with every other."""
    return np.zeros(keys.num_rows, np.int64)


def few_hashes(keys: pa.RecordBatch) -> np.ndarray:
    return hashes_of(keys) % 3


def records(batch: pa.RecordBatch, keys: Sequence[str] = (), hashes: Hashes = hashes_of) -> Records:
    if not keys:
        return Records(batch, np.zeros(batch.num_rows, np.int64))
    return Records(batch, hashes(batch.select(list(keys))))


def stateless(spec: OperatorSpec, *batches: pa.RecordBatch) -> Rows:
    operator = spec.build(OperatorContext())
    outputs = [output for batch in batches for output in operator.process(records(batch))]
    return rows_of([*outputs, *operator.finish()], spec)


def rows_of(outputs: Iterable[pa.RecordBatch], spec: OperatorSpec) -> Rows:
    rows: Rows = []
    for output in outputs:
        output.validate(full=True)
        assert output.schema.equals(spec.output_schema)
        rows += output.to_pylist()
    return rows


def run_epochs(
    spec: OperatorSpec,
    keys: Sequence[str],
    epochs: Iterable[tuple[int, Sequence[pa.RecordBatch]]],
    hashes: Hashes = hashes_of,
) -> list[Rows]:
    """Output per epoch; an epoch is a parallelism and slices."""
    outputs: list[Rows] = []
    with closing(Checkpoint(MemoryStore(), spec.state_tables[MAIN_STATE], GROUPS)) as checkpoint:
        for parallelism, slices in epochs:
            emitted: Rows = []
            for subtask in range(parallelism):
                state = checkpoint.open(subtask, parallelism)
                operator = spec.build(OperatorContext({MAIN_STATE: state}))
                for batch in slices:
                    part = _part(records(batch, keys, hashes), subtask, parallelism)
                    emitted += rows_of(operator.process(part), spec)
                emitted += rows_of(operator.finish(), spec)
                checkpoint.finish(state)
            outputs.append(emitted)
    return outputs


def _part(whole: Records, subtask: int, parallelism: int) -> Records:
    """The rows of one subtask's key groups."""
    owned, groups = range_of(subtask, parallelism, GROUPS), groups_of(whole.hashes, GROUPS)
    rows = np.flatnonzero((groups >= owned.lo) & (groups < owned.hi))
    return Records(whole.batch.take(pa.array(rows)), whole.hashes[rows])


def plain(value: Any) -> Any:
    """A value that equals itself: one NaN, one zero."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def plain_rows(rows: Iterable[dict[str, Any]]) -> Rows:
    return [{name: plain(value) for name, value in row.items()} for row in rows]
