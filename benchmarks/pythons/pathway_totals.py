"""Running count and sum per key in Pathway, by a reducer in Python: ``pathway spawn -n 2 python pathway_totals.py``.

Two processes; what was computed is kept for recovery every second. Each process prints when it began and when it ended.
"""

from __future__ import annotations

import os
import time

import pathway as pw


class Rows(pw.Schema):
    key: int
    amount: int


class Totals(pw.BaseCustomAccumulator):
    def __init__(self, n: int, total: int) -> None:
        self.n, self.total = n, total

    @classmethod
    def from_row(cls, row):
        return cls(1, row[0])

    def update(self, other):
        self.n += other.n
        self.total += other.total

    def compute_result(self) -> tuple[int, int]:
        return (self.n, self.total)


folder, kept = os.environ["TOTALS_FOLDER"], os.environ["TOTALS_KEPT"]
rows = pw.io.csv.read(folder, schema=Rows, mode="static")
totals = rows.groupby(rows.key).reduce(rows.key, totals=pw.reducers.udf_reducer(Totals)(rows.amount))
pw.io.null.write(totals)
print(f"first {time.time():.3f} {time.process_time():.3f}", flush=True)
backend = pw.persistence.Backend.filesystem(kept)
pw.run(
    monitoring_level=pw.MonitoringLevel.NONE,
    persistence_config=pw.persistence.Config(backend, snapshot_interval_ms=1_000),
)
print(f"last {time.time():.3f} {time.process_time():.3f} 0", flush=True)
