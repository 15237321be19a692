"""Programs that change between two starts with rows in flight, in the engine without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.api.outputs import Output
from penstock.engine.checkpoints import Checkpoints
from penstock.store import open_store
from penstock.testing.inline import InlineRun
from penstock.testing.tables import Memory, memory_table
from tests.support.engine_jobs import FakeClock, batches_of, run_until

ROWS, BATCHES = 200, 6


class Changing:
    """One program after another on one folder. Rows cost time in `slow`, so some are in flight when it is stopped."""

    def __init__(self, folder: Path, table: str, *, batches: Any = None) -> None:
        self.folder, self.table, self.clock = folder, table, FakeClock()
        self.run = InlineRun(batches_of(ROWS, BATCHES) if batches is None else batches, self.clock)
        self.query: Any = None

    def slow(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.clock.now += batch.num_rows * 0.004
        return batch

    def sink(self, name: str = "") -> Memory:
        return Memory(self.table + name)

    def rows(self, name: str = "") -> list[dict[str, Any]]:
        return memory_table(self.table + name).rows().to_pylist()

    def start_and_leave_behind(self, *outputs: Output, rows: int = 1, **options: Any) -> Any:
        """Stops with at least so many rows in flight."""
        self.query = run_until(
            self.run,
            outputs,
            lambda event: event.kind != "takeover" and event.rows_in_flight >= rows,
            checkpoint=self.folder,
            **{"epoch": 0.1, "parallelism": 2, "max_parallelism": 16, **options},
        )
        manifest = self.query.manifest()
        assert manifest.rows_in_flight >= rows
        return manifest

    def query_ids(self) -> list[int]:
        """Checkpoints in the folder that can be restored."""
        return [int(number) for number in Checkpoints(open_store(str(self.folder))).ids()]

    def finish(self, *outputs: Output, **options: Any) -> Any:
        query = self.run.start(
            *outputs,
            checkpoint=self.folder,
            **{"epoch": 0.1, "parallelism": 2, "max_parallelism": 16, **options},
        )
        query.await_termination(60)
        return query
