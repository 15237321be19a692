"""The stream of several sources that a subtask gets, in all orders that Spark may choose.

Rows of an edge keep their order. A seed draws how edges take turns: runs of one edge, strict alternation, row by row.
Batches have from one row up.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.engine.cluster import StageJob
from penstock.graph.stages import Edge
from penstock.inflight.live import LiveBatches, LiveInputs
from penstock.inflight.segment import HASH_COLUMN
from penstock.testing.batch import tables_of

RUNS = (1, 3, 40, 1000)
"""How many rows of an edge follow each other, at most."""
BATCHES = (1, 2, 7, 100, 1 << 16)
"""Rows of a batch, at most."""


def rows_in(job: StageJob) -> int | None:
    """How many live rows a job gets of its micro-batch, counted before they are mixed."""
    if not job.plan.live or job.batch is None:
        return None
    tables = tables_of(job.batch)
    return sum(tables[edge.producer].num_rows for edge in job.stage.source_inputs)


def live_batches(rows: Sequence[pa.RecordBatch], rng: random.Random) -> list[pa.RecordBatch]:
    """What Spark hands over of the rows of each edge of a stage; their last column is the hash."""
    if len(rows) == 1:
        return list(rows)
    ports = _turns([part.num_rows for part in rows], rng)
    mixed = _mixed(rows, ports)
    return list(_cut(mixed, rng.choice(BATCHES), rng))


def live_inputs(batches: LiveBatches, edges: Sequence[Edge], bytes_max: int) -> LiveInputs:
    """What reads them, as Spark's workers have it."""
    if len(edges) == 1:
        return LiveInputs.single(batches, edges[0].name)
    return LiveInputs.mixed(batches, [edge.name for edge in edges], bytes_max)


def _turns(sizes: Sequence[int], rng: random.Random) -> npt.NDArray[np.int32]:
    """The number of the edge of each row."""
    if rng.random() < 1 / len(RUNS):  # one edge after the other, as Spark's union usually does
        order = rng.sample(range(len(sizes)), len(sizes))
        return np.concatenate([np.full(sizes[port], port, np.int32) for port in order])
    run, alternating = rng.choice(RUNS), rng.random() < 0.5
    left = list(sizes)
    turns = []
    while any(left):
        ports = [port for port, rows in enumerate(left) if rows]
        for port in ports if alternating else [rng.choice(ports)]:
            rows = min(left[port], run if alternating else rng.randint(1, run))
            turns.append(np.full(rows, port, np.int32))
            left[port] -= rows
    return np.concatenate(turns) if turns else np.empty(0, np.int32)


def _mixed(rows: Sequence[pa.RecordBatch], ports: npt.NDArray[np.int32]) -> pa.RecordBatch:
    """The number of the edge, one struct column for each edge, and the hash."""
    hashes = np.empty(len(ports), np.int64)
    structs = []
    for port, part in enumerate(rows):
        mine = ports == port
        hashes[mine] = part.column(part.num_columns - 1).to_numpy()
        packed = pa.StructArray.from_arrays(part.columns[:-1], part.schema.names[:-1])
        places = np.cumsum(mine) - 1
        structs.append(packed.take(pa.array(places, mask=~mine)))
    names = ["port", *(f"p{port}" for port in range(len(rows))), HASH_COLUMN]
    return pa.RecordBatch.from_arrays([pa.array(ports), *structs, pa.array(hashes)], names)


def _cut(batch: pa.RecordBatch, rows_max: int, rng: random.Random) -> Iterator[pa.RecordBatch]:
    begin = 0
    while begin < batch.num_rows:
        rows = rng.randint(1, rows_max)
        yield batch.slice(begin, rows)
        begin += rows
