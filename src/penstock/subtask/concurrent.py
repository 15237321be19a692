"""Steps an operator that works on several slices at once.

A row counts as consumed once the operator has emitted its result. Rows that are unfinished at the barrier go back. If
order is kept, the cursor moves back; else these rows are written to a segment of their own. In both cases they are in
flight again, and nothing was emitted for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from penstock.inflight.gate import Channel, Taken, TakenSlice, as_records
from penstock.operators.base import ConcurrentOperator
from penstock.records import NO_WATERMARK, Emitted, Time
from penstock.subtask.barrier import Barrier


class ConcurrentSteps:
    """The steps of one attempt."""

    def __init__(
        self,
        channel: Channel,
        operator: ConcurrentOperator,
        emit: Callable[[Iterator[Emitted], int | None], None],
        time: Callable[[], Time],
    ) -> None:
        self._channel, self._operator, self._emit, self._time = channel, operator, emit, time
        self._taken: dict[int, tuple[TakenSlice, int]] = {}
        self._slices = 0
        self._used_up = False
        self.rows = 0
        """How many were begun."""

    def run(self, barrier: Barrier) -> None:
        """Begins slices and lets results out until the input or the time is used up."""
        operator = self._operator
        while True:
            if self._may_begin(barrier) and self._begin(barrier.left_s):
                continue
            if not operator.busy:
                break
            wait_s = max(barrier.left_s, operator.patience_s)
            if wait_s <= 0:
                break
            self._let_out(wait_s)
            self._taken = {number: self._taken[number] for number in operator.open_slices}
        self._let_out(0.0)

    def give_back(self, *, in_place: bool) -> tuple[int, int | None]:
        """Gives unfinished rows back. Returns their number, and the lowest watermark they came with."""
        unfinished = self._operator.unfinished()
        if not unfinished:
            return 0, None
        watermark = min(self._taken[part.slice][1] for part in unfinished)
        if in_place:
            numbers = [part.slice for part in unfinished]
            assert numbers == list(range(numbers[0], self._slices)), "order is kept by giving back the newest slices"
            self._channel.rewind([self._taken[number][0] for number in numbers])
        else:
            batches = [self._taken[part.slice][0].batch.take(pa.array(part.rows)) for part in unfinished]
            self._channel.put_back(batches, None if watermark == NO_WATERMARK else watermark)
        return sum(len(part.rows) for part in unfinished), watermark

    def _may_begin(self, barrier: Barrier) -> bool:
        """The first slice is begun however late it is: every epoch makes progress."""
        return not self._used_up and (not self._slices or not barrier.fired())

    def _begin(self, left_s: float) -> bool:
        rows = self._operator.room(left_s)
        if not rows:
            return False
        taken = self._channel.take_returnable(rows)
        time = self._time()
        if taken is None:
            self._used_up = True
            return False
        self._taken[self._slices] = taken, time.lowest
        self._slices += 1
        self.rows += taken.batch.num_rows
        records = as_records(Taken(0, taken.batch, taken.arrival), time)
        self._emit(self._operator.process(records), taken.arrival)
        return True

    def _let_out(self, wait_s: float) -> None:
        for arrival, emitted in self._operator.collect(wait_s):
            self._emit(iter((emitted,)), arrival)
