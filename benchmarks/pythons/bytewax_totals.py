"""Running count and sum per key in Bytewax: ``python -m bytewax.testing -p 2 … bytewax_totals:flow``.

Two processes, each with half of the files; a snapshot for recovery every second. Each process prints when it read its
first row and when it ended.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import bytewax.operators as op
import pyarrow.parquet as pq
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition

BATCH_ROWS = 1_000
FOLDER = Path(os.environ["TOTALS_FOLDER"])
PARTS = 2


class Part(StatefulSourcePartition):
    def __init__(self, number: int) -> None:
        self._rows = self._read(sorted(FOLDER.glob("*.parquet"))[number::PARTS])

    def _read(self, files: list[Path]):
        print(f"first {time.time():.3f} {time.process_time():.3f}", flush=True)
        for file in files:
            for batch in pq.ParquetFile(file).iter_batches(BATCH_ROWS):
                yield list(zip(map(str, batch["key"].to_pylist()), batch["amount"].to_pylist(), strict=True))

    def next_batch(self):
        return next(self._rows)

    def snapshot(self):
        return None


class Files(FixedPartitionedSource):
    def list_parts(self):
        return [str(number) for number in range(PARTS)]

    def build_part(self, step_id, for_part, resume_state):
        return Part(int(for_part))


class Nowhere(StatelessSinkPartition):
    rows = 0

    def write_batch(self, items):
        self.rows += len(items)

    def close(self):
        print(f"last {time.time():.3f} {time.process_time():.3f} {self.rows}", flush=True)


class Discard(DynamicSink):
    def build(self, step_id, worker_index, worker_count):
        return Nowhere()


def add(state, amount):
    count, total = state or (0, 0)
    state = (count + 1, total + amount)
    return state, state


flow = Dataflow("totals")
rows = op.input("files", flow, Files())
totals = op.stateful_map("totals", rows, add)
op.output("nowhere", totals, Discard())
