"""A sink that says which rows meet in one writer, and notes who wrote whose rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.hashing import hash_columns
from penstock.sinks.base import WriterContext
from penstock.testing.tables import Memory, MemoryWriter
from tests.support.engine_jobs import FakeClock


@dataclass(frozen=True)
class ByUser:
    """Rows of a user meet."""

    keys: tuple[str, ...] = ("user",)
    ordered: bool = True

    def lanes(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        return hash_columns([batch.column("user")]) & np.int64(0x7FFF_FFFF)


@dataclass(frozen=True)
class Routed(Memory):
    """Its writers are slow."""

    clock: FakeClock
    writers: dict[int, set[int]] = field(default_factory=dict)
    """By user, the subtasks that wrote rows of it."""

    def routing(self, schema: pa.Schema) -> ByUser:
        del schema
        return ByUser()

    def open_writer(self, context: WriterContext, schema: pa.Schema) -> MemoryWriter:
        sink = self

        class Noting(MemoryWriter):
            def write(self, batch: pa.RecordBatch) -> None:
                sink.clock.now += batch.num_rows * 0.004
                for user in batch.column("user").to_pylist():
                    sink.writers.setdefault(user, set()).add(context.subtask)
                super().write(batch)

        return Noting(schema)
