"""Event times of a slice, and which of its rows are late."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.window.windows import Micros
from penstock.records import Records


class Timely(NamedTuple):
    """Rows in time, with their event times; and the late ones, or those without an event time, if there are any."""

    batch: pa.RecordBatch
    hashes: npt.NDArray[np.int64]
    times: Micros
    late: pa.RecordBatch | None


def split_late(records: Records, column: str, shift: int, deadline: Callable[[Micros], Micros]) -> Timely:
    """Separates late rows. A row is late unless its `deadline`, which grows with its time, is after the watermark."""
    kind = pa.timestamp("us", records.batch.schema.field(column).type.tz)
    stamps = pc.cast(records.batch.column(column), kind, safe=False).view(pa.int64())
    times = (stamps.fill_null(0) if stamps.null_count else stamps).to_numpy() - shift
    late = stamps.is_null().to_numpy(zero_copy_only=False) if stamps.null_count else None
    if records.time is not None and len(times) and deadline(times.min(keepdims=True))[0] <= records.time.highest:
        behind = deadline(times) <= records.time.watermark_of(records.hashes)
        late = behind if late is None else late | behind
    if late is None or not late.any():
        return Timely(records.batch, records.hashes, times, None)
    kept = np.flatnonzero(~late)
    rows = pa.array(kept)
    return Timely(
        records.batch.take(rows), records.hashes[kept], times[kept], records.batch.take(pa.array(np.flatnonzero(late)))
    )
