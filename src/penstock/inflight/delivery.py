"""Counts the live rows that a subtask was handed, outside of all code that reads them.

Readers count what they accept, but a reader that overlooks rows overlooks them in its count, too. This class wraps the
iterator itself, so it sees every row that Spark hands over, and knows whether the reader took all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import REPORT_IT, ConservationError
from penstock.protocol.report import SubtaskReport


class CountedStream:
    """The batches of a stream, counted by edge. Those of several edges have the number of the edge as first column."""

    def __init__(self, batches: Iterator[pa.RecordBatch], edges: Sequence[str]) -> None:
        self._batches, self._edges = batches, tuple(edges)
        self._rows: npt.NDArray[np.int64] = np.zeros(len(edges), np.int64)
        self._ended = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._ended = True
            raise
        if len(self._edges) == 1:
            self._rows[0] += batch.num_rows
        else:
            # A number that belongs to no edge makes this fail, because the lengths differ.
            self._rows += np.bincount(batch.column(0).to_numpy(zero_copy_only=True), minlength=len(self._edges))
        return batch

    def stamped(self, report: SubtaskReport) -> SubtaskReport:
        """The report with what was delivered; a report of failure where the stream was not read to its end."""
        if report.failure is not None:
            return report
        delivered = dict(zip(self._edges, self._rows.tolist(), strict=True))
        if self._ended:
            return msgspec.structs.replace(report, delivered=delivered)
        error = ConservationError(
            f"stage {report.stage}, subtask {report.subtask}: live rows were left unread behind {delivered}",
            cause="a fault in Penstock: the attempt reported before its stream was at the end",
            next_step=REPORT_IT,
            checkpoint=report.checkpoint,
        )
        return SubtaskReport(
            stage=report.stage,
            subtask=report.subtask,
            checkpoint=report.checkpoint,
            attempt=report.attempt,
            failure=error.to_report(),
        )
