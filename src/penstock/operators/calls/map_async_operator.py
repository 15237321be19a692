"""Decides which rows of a `MapAsync` begin, which are done, and in what order they leave.

All of it belongs to the subtask's thread; the calls themselves run on the event loop's.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import pyarrow as pa

from penstock.display import record_of
from penstock.errors import OperatorFailed
from penstock.operators.base import OperatorDefaults, Unfinished
from penstock.operators.calls.calling import Calls, Ended, Row
from penstock.operators.failures.deadletters import Letters
from penstock.operators.failures.failing import BadOutput, operator_failed
from penstock.operators.values.convert import batch_of_rows, first_misfit, readable_rows
from penstock.protocol.ids import CheckpointId
from penstock.records import Emitted, Records

SLICES = 16
"""A slice has this part of the concurrency in rows: fewer, larger slices cost less per row."""
RESERVE = 2
"""This part of the concurrency waits in reserve, enough until the subtask's thread brings more."""
UNFINISHED_MAX = 3
"""At most this many times the concurrency may be unfinished. Done rows that wait for an older one count, too."""
LATENCIES = 101
"""The usual duration of a call is the median of this many."""
MARGIN = 1.1
"""A call is not begun when less time is left than this many times a usual call: it would be abandoned."""
ROUNDS = 2
"""If a usual call takes longer than the epoch, the barrier waits this many usual calls, counted from the first."""


@dataclass(slots=True)
class _Slice:
    """Rows that were begun together: those that still run, and what came out of those that are done."""

    batch: pa.RecordBatch
    arrival: CheckpointId | None
    running: set[int]
    results: dict[int, Row | Exception] = field(default_factory=dict)


class CallOperator(OperatorDefaults):
    """One attempt's `ConcurrentOperator`."""

    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        calls: Calls,
        letters: Letters | None,
        *,
        concurrency: int,
        ordered: bool,
        clock: Callable[[], float],
    ) -> None:
        self._name, self._schema = name, schema
        self._calls, self._letters = calls, letters
        self._concurrency, self._ordered, self._clock = concurrency, ordered, clock
        self._slice_rows = max(1, concurrency // SLICES)
        self._running_max = concurrency + max(1, concurrency // RESERVE)
        self._slices: dict[int, _Slice] = {}
        self._begun = self._running = self._unfinished_rows = 0
        self._begin_until = math.inf
        self._first_begun_at = 0.0
        self._latencies: deque[float] = deque(maxlen=LATENCIES)

    # -- what goes on --------------------------------------------------------------------------------------------

    @property
    def open_slices(self) -> Collection[int]:
        return self._slices.keys()

    @property
    def busy(self) -> bool:
        return self._running > 0

    def room(self, left_s: float) -> int:
        if not self._begun:
            return 1  # alone in its slice, because the barrier waits for the first one
        if self._latencies:
            left_s -= MARGIN * median(self._latencies)
        if left_s < 0:
            return 0
        self._begin_until = self._clock() + left_s
        free = min(self._running_max - self._running, UNFINISHED_MAX * self._concurrency - self._unfinished_rows)
        return self._slice_rows if free >= self._slice_rows else 0

    @property
    def patience_s(self) -> float:
        """Infinite until the first slice is done, so that every epoch finishes at least one row."""
        if 0 in self._slices:
            return math.inf
        usual_s = median(self._latencies) if self._latencies else 0.0
        return self._first_begun_at + ROUNDS * usual_s - self._clock()

    def process(self, records: Records) -> Iterator[Emitted]:
        if not self._begun:
            self._first_begun_at = self._clock()
        self._slices[self._begun] = _Slice(records.batch, records.arrival, set(range(records.rows)))
        self._calls.begin(self._begun, readable_rows(records.batch), self._begin_until)
        self._begun += 1
        self._running += records.rows
        self._unfinished_rows += records.rows
        return iter(())

    def collect(self, wait_s: float) -> Iterator[tuple[int | None, Emitted]]:
        for ended in self._calls.ended(wait_s, min(self._slice_rows, self._running)):
            self._running -= 1
            self._latencies.append(ended.elapsed_s)
            part = self._slices[ended.slice]
            part.running.remove(ended.row)
            part.results[ended.row] = self._checked(part, ended)
        for arrival, leaving in itertools.groupby(self._leaving(), key=lambda place: place[0].arrival):
            for emitted in self._emitted(list(leaving)):
                yield arrival, emitted

    def _emitted(self, leaving: list[tuple[_Slice, int, Row | Exception]]) -> Iterator[Emitted]:
        good = [(part, row) for part, row, result in leaving if not isinstance(result, Exception)]
        if good:
            yield self._output(good, [result for _, _, result in leaving if not isinstance(result, Exception)])
        if self._letters is not None:
            self._letters.tried += len(leaving)
            for part, row, result in leaving:
                if isinstance(result, Exception):
                    self._letters.add(part.batch, row, result)
            yield from self._letters.take()

    def counters(self) -> Mapping[str, int]:
        return {} if self._letters is None else self._letters.counters()

    def unfinished(self) -> list[Unfinished]:
        self.close()
        return [
            Unfinished(number, np.arange(part.batch.num_rows) if self._ordered else np.array(sorted(part.running)))
            for number, part in self._slices.items()
        ]

    def close(self) -> None:
        self._calls.abandon()

    # -- what comes out ------------------------------------------------------------------------------------------

    def _checked(self, part: _Slice, ended: Ended) -> Row | Exception:
        """The result of a call. Raises if the result stops the query."""
        if isinstance(ended.result, Exception) and self._letters is None:
            raise self._failure(part, ended.row, ended.result)
        return ended.result

    def _failure(self, part: _Slice, row: int, error: Exception) -> OperatorFailed:
        failure = operator_failed(self._name, error, record_of(part.batch, row))
        failure.__cause__ = error
        return failure

    def _leaving(self) -> list[tuple[_Slice, int, Row | Exception]]:
        """The rows that may leave now, in order. Drops slices that are complete."""
        leaving: list[tuple[_Slice, int, Row | Exception]] = []
        for number, part in list(self._slices.items()):
            if self._ordered and part.running:
                break
            leaving += ((part, row, part.results[row]) for row in sorted(part.results))
            part.results = {}
            if not part.running:
                del self._slices[number]
        self._unfinished_rows -= len(leaving)
        return leaving

    def _output(self, places: list[tuple[_Slice, int]], rows: list[Row]) -> pa.RecordBatch:
        try:
            return batch_of_rows(rows, self._schema)
        except BadOutput as error:
            if self._letters is None:
                part, row = places[first_misfit(rows, self._schema)]
                raise self._failure(part, row, error) from error
        fitting = []
        for (part, row), result in zip(places, rows, strict=True):
            try:
                batch_of_rows([result], self._schema)
            except BadOutput as error:
                self._letters.add(part.batch, row, error)
            else:
                fitting.append(result)
        return batch_of_rows(fitting, self._schema)
