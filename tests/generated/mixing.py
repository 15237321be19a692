"""Live rows as Spark's shuffle hands them over: the sources of a stage in one stream, whole partitions in any order.

A row of an unkeyed edge is in the lane of its Spark partition, whose number means something else in each micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.engine.cluster import StageJob
from penstock.graph.stages import Edge
from penstock.hashing import hash_columns
from penstock.inflight.delivery import CountedStream
from penstock.inflight.lanes import Dealer, spread_lanes
from penstock.inflight.live import LiveInputs
from penstock.inflight.segment import HASH_COLUMN
from penstock.protocol.keygroups import groups_of
from penstock.protocol.report import SubtaskReport
from penstock.subtask.attempt import run_subtask
from penstock.testing import harness
from penstock.testing.batch import tables_of
from tests.generated.program import Schedule

PART = "part"
"""The column with the partition of a row."""


@dataclass(slots=True)
class Mixing(harness._Stepped):
    """Subtasks that get their live rows as from Spark."""

    schedule: Schedule | None = None

    def _run_one(self, job: StageJob, subtask: int) -> SubtaskReport:
        attempt, stream = next(self._attempts), None
        if job.plan.live and job.batch is not None:
            names = [edge.name for edge in job.stage.source_inputs]
            stream = CountedStream(self._stream(job, subtask, attempt), names)
        report = run_subtask(
            job.stage,
            job.plan,
            subtask,
            store=self.store,
            limits=self.limits,
            attempt=str(attempt),
            live=None if stream is None else _inputs(stream, job, self.limits.prefetch_bytes),
            clock=self.clock,
        )
        return report if stream is None else stream.stamped(report)

    def _stream(self, job: StageJob, subtask: int, attempt: int) -> Iterator[pa.RecordBatch]:
        assert self.schedule is not None
        assert job.batch is not None
        seed = self.schedule.seed
        numbers = _partition_numbers(tables_of(job.batch), Random(f"{seed} {job.batch.batch_id}"))
        blocks = [_block(job, subtask, source, part, number) for (source, part), number in numbers.items()]
        Random(f"{seed} {job.stage.name} {subtask} {attempt}").shuffle(blocks)
        return _cut(pa.concat_tables(blocks), self.schedule.batch_rows)


def _inputs(stream: CountedStream, job: StageJob, bytes_max: int) -> LiveInputs:
    """As in Spark's workers."""
    names = [edge.name for edge in job.stage.source_inputs]
    return LiveInputs.single(stream, names[0]) if len(names) == 1 else LiveInputs.mixed(stream, names, bytes_max)


def _partition_numbers(tables: Mapping[str, pa.Table], chance: Random) -> dict[tuple[str, int], int]:
    """The number of Spark's partition, by source and what the rows call it."""
    parts = [(source, part) for source, rows in tables.items() for part in rows.column(PART).unique().to_pylist()]
    numbers = chance.sample(range(len(parts) + 3), len(parts))
    return dict(zip(parts, numbers, strict=True)) or {(source, 0): 0 for source in tables}


def _block(job: StageJob, subtask: int, source: str, part: int, number: int) -> pa.Table:
    """What one of Spark's partitions has for a subtask."""
    assert job.batch is not None
    tables, edges, plan = tables_of(job.batch), job.stage.source_inputs, job.plan
    rows = tables[source].filter(pa.compute.equal(tables[source].column(PART), part)).combine_chunks()
    schemas = [tables[edge.producer].schema for edge in edges]
    pieces, places = [], []
    for port, edge in enumerate(edges):
        mine = rows if edge.producer == source else tables[edge.producer].slice(0, 0)
        hashes = _hashes(mine, edge, number, plan.max_parallelism)
        wanted = groups_of(hashes, plan.max_parallelism) * plan.parallelism // plan.max_parallelism == subtask
        place = np.flatnonzero(wanted)
        places.append(place)
        piece = mine.take(place).append_column(HASH_COLUMN, pa.array(hashes[place], pa.int64()))
        pieces.append(piece if len(edges) == 1 else _packed(port, piece, schemas))
    # A row that goes to several inputs comes several times in a row.
    return pa.concat_tables(pieces).take(np.argsort(np.concatenate(places), kind="stable"))


def _hashes(rows: pa.Table, edge: Edge, number: int, max_parallelism: int) -> npt.NDArray[np.int64]:
    if edge.keys:
        return hash_columns([pa.concat_arrays(rows.column(key).chunks) if rows.num_rows else
                             pa.array([], rows.schema.field(key).type) for key in edge.keys])  # fmt: skip
    if edge.rebalanced:
        return Dealer(max_parallelism, number).deal(rows.num_rows)
    return np.full(rows.num_rows, spread_lanes(max_parallelism)[number % max_parallelism], np.int64)


def _packed(port: int, rows: pa.Table, schemas: list[pa.Schema]) -> pa.Table:
    """The number of the input, a struct for each, of which only this one's has a value, and the hash."""
    batch = rows.combine_chunks()
    columns = [pa.array([port] * rows.num_rows, pa.int32())]
    for other, schema in enumerate(schemas):
        kind = pa.struct(list(schema))
        if other == port and rows.num_rows:
            arrays = [pa.concat_arrays(batch.column(name).chunks) for name in schema.names]
            columns.append(pa.StructArray.from_arrays(arrays, fields=list(schema)))
        else:
            columns.append(pa.nulls(rows.num_rows, kind))
    hashes = batch.column(HASH_COLUMN)
    names = ["__penstock_port", *(f"p{other}" for other in range(len(schemas))), HASH_COLUMN]
    return pa.table([*columns, hashes], names=names)


def _cut(rows: pa.Table, size: int) -> Iterator[pa.RecordBatch]:
    yield from rows.combine_chunks().to_batches(max_chunksize=size)
