"""Finds the panes and windows that a watermark has passed, in bounded steps.

For each key group windows close in the order of their ends. A pane dies when its last window, and the lateness allowed
beyond it, is over. `PaneIndex` finds both without searching entries that are not due.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock.operators.window.pane_clock import NEVER, PaneClock
from penstock.operators.window.panes import PLACES, Hashes, PaneIndex, Stretch
from penstock.operators.window.windows import Micros, RegularWindow
from penstock.protocol.keygroups import KeyGroupRange
from penstock.records import NO_WATERMARK
from penstock.state.keys import Flags, Rows
from penstock.state.layout import groups_of_orders
from penstock.state.ranges import Entries

if TYPE_CHECKING:
    from penstock.state.keyed import KeyedState

# A step reads about this many entries, which takes some milliseconds.
STEP_ROWS = 1 << 14


class Step(NamedTuple):
    """A bounded piece of what is due in a key group: between two watermarks, keys in places `start` to `stop` - 1."""

    group: int
    done: int
    target: int
    start: int
    stop: int
    rows: int
    """How many entries it puts into windows, or deletes, at most."""


class Closed(NamedTuple):
    """Result of some steps: entries, which closing windows they belong to, and which entries die."""

    entries: Entries
    rows: Rows
    windows: Hashes
    """One for each of `rows`."""
    dead: Flags


class Closing:
    """Finds what is due in one subtask; `closes` is False where only dead panes matter.

    With a negative lateness panes die earlier; entries of a pane that is not over may stay.
    """

    def __init__(
        self,
        window: RegularWindow,
        lateness: int,
        groups: KeyGroupRange,
        max_parallelism: int,
        state: KeyedState,
        clock: PaneClock,
        *,
        closes: bool,
    ) -> None:
        self._window, self._lateness, self._closes = window, lateness, closes
        self._groups, self._max_parallelism = groups, max_parallelism
        self._index = PaneIndex(max_parallelism)
        self._state, self._clock = state, clock
        self._windows_per_pane = -(-window.panes_per_window // window.panes_per_step)

    def due(self) -> Micros:
        """For each key group, a moment before which nothing is due."""
        clock, window = self._clock, self._window
        alive, halfway = clock.alive, clock.halfway
        first = np.where(alive, clock.first, 0)
        due = window.end_of(window.last_window_of(first)) + self._lateness
        if self._closes:
            following = window.first_ending_after(np.maximum(clock.done, window.pane_start(first)))
            has_rows = following * window.panes_per_step <= clock.last
            due = np.where(has_rows, np.minimum(window.end_of(following), due), due)
        return np.where(halfway, np.minimum(due, clock.target), np.where(alive, due, NEVER))

    def last_end(self) -> int | None:
        """The end of the last window that is open; None if none is, or windows do not close here."""
        clock, window = self._clock, self._window
        alive = clock.alive
        if not self._closes or not alive.any():
            return None
        ends = window.end_of(window.last_window_of(clock.last[alive]))
        left = ends[ends > clock.done[alive]]
        return int(left.max()) if len(left) else None

    def steps(self, due: Rows, watermarks: Micros) -> Iterator[list[Step]]:
        """What is due in the key groups `due`, as lists of steps to take at once, with a key group at most once."""
        steps: list[Step] = []
        rows = 0
        for group in due.tolist():
            for step in self._steps_of(group, int(watermarks[group])):
                if steps and (rows + step.rows > STEP_ROWS or steps[-1].group == group):
                    yield steps
                    steps, rows = [], 0
                steps.append(step)
                rows += step.rows
        if steps:
            yield steps

    def _steps_of(self, group: int, watermark: int) -> Iterator[Step]:
        """Cuts the due work of a key group by time, and by place where a single moment has too much."""
        done, start = int(self._clock.done[group]), int(self._clock.place[group])
        while done < watermark:
            whole = Step(group, done, watermark, 0, PLACES, 0)
            if start:
                whole = whole._replace(target=int(self._clock.target[group]))
            whole = self._counted(whole) if start else self._shortened(self._counted(whole))
            pieces = 1 << (max(0, whole.rows - 1) // STEP_ROWS).bit_length()
            size = max(1, PLACES // pieces)
            for place in range(start, PLACES, size):
                stop = min(place + size, PLACES)
                yield whole._replace(start=place, stop=stop, rows=-(-whole.rows // pieces))
            done, start = whole.target, 0

    def _shortened(self, step: Step) -> Step:
        """The step, cut to an earlier moment if it has too many entries."""
        while step.rows > STEP_ROWS:
            earliest = self._next_moment(step)
            if step.target <= earliest:
                break
            step = self._counted(step._replace(target=max(earliest, (earliest + step.target) // 2)))
        return step

    def _next_moment(self, step: Step) -> int:
        """The first moment of the step at which something is due."""
        window = self._window
        start = window.pane_start(int(self._clock.first[step.group]))
        dies = window.end_of(window.first_ending_after(max(step.done - self._lateness, start))) + self._lateness
        if not self._closes:
            return dies
        return min(dies, window.end_of(window.first_ending_after(max(step.done, start))))

    def _counted(self, step: Step) -> Step:
        counts = self._state.count_within(self._index.spans(self._stretches(step)))
        opening, closing = self._closing_windows(step)
        # An entry counts once for each of its windows that close: one, as a rule, however many windows it is in.
        times = max(1, min(closing - opening + 1, self._windows_per_pane))
        return step._replace(rows=int(counts.sum()) * times)

    def _stretches(self, step: Step) -> list[Stretch]:
        window, group = self._window, step.group + self._groups.lo
        first, last = int(self._clock.first[step.group]), int(self._clock.last[step.group])
        stretches = [Stretch(group, first, min(self._dead_until(step), last), step.start, step.stop)]
        opening, closing = self._closing_windows(step)
        if opening <= closing:
            begin = max(first, opening * window.panes_per_step)
            end = min(last, closing * window.panes_per_step + window.panes_per_window - 1)
            stretches.append(Stretch(group, begin, end, step.start, step.stop))
        return stretches

    def _closing_windows(self, step: Step) -> tuple[int, int]:
        """The first and the last window that close; none if the last is before the first."""
        if not self._closes:
            return 0, -1
        start = self._window.pane_start(int(self._clock.first[step.group]))
        first = self._window.first_ending_after(max(step.done, start))
        return first, self._window.first_ending_after(step.target) - 1

    def _dead_until(self, step: Step) -> int:
        """The last pane that no open window has."""
        over = self._window.first_ending_after(step.target - self._lateness)
        return over * self._window.panes_per_step - 1

    def read(self, steps: Sequence[Step]) -> Closed | None:
        """The entries of the steps; None if there are none."""
        stretches = [stretch for step in steps for stretch in self._stretches(step)]
        entries = self._state.within(self._index.spans(stretches))
        if entries is None:
            return None
        opening, closing, dead = self._limits(steps)
        groups = groups_of_orders(entries.orders, self._max_parallelism) - self._groups.lo
        panes = entries.keys.column(entries.keys.num_columns - 1).to_numpy()
        first = np.maximum(self._window.first_window_of(panes), opening[groups])
        last = np.minimum(self._window.last_window_of(panes), closing[groups])
        rows, windows = spread(first, last)
        if (panes[rows[1:]] < panes[rows[:-1]]).any():
            # Panes of a window are combined in the order of time.
            by_time = np.argsort(panes[rows], kind="stable")
            rows, windows = rows[by_time], windows[by_time]
        return Closed(entries, rows, windows, panes <= dead[groups])

    def _limits(self, steps: Sequence[Step]) -> tuple[Hashes, Hashes, Hashes]:
        """By key group: the first and the last window that close, and the last pane that dies."""
        count = len(self._groups)
        opening, closing = np.zeros(count, np.int64), np.full(count, NO_WATERMARK, np.int64)
        dead = np.full(count, NO_WATERMARK, np.int64)
        for step in steps:
            opening[step.group], closing[step.group] = self._closing_windows(step)
            dead[step.group] = self._dead_until(step)
        return opening, closing, dead

    def done(self, steps: Sequence[Step]) -> None:
        """Records that the steps are done: results are ready, dead entries are deleted."""
        clock = self._clock
        for step in steps:
            clock.target[step.group] = step.target
            clock.stepped[step.group] = True
            if step.stop < PLACES:
                clock.place[step.group] = step.stop
                continue
            over = self._window.first_ending_after(step.target - max(self._lateness, 0)) * self._window.panes_per_step
            clock.first[step.group] = max(int(clock.first[step.group]), over)
            clock.done[step.group], clock.place[step.group] = step.target, 0


def spread(first: Hashes, last: Hashes) -> tuple[Rows, Hashes]:
    """Pairs of a row and each number from its first to its last."""
    if len(first) and (first == last).all():
        return np.arange(len(first)), first
    counts = np.maximum(last - first + 1, 0)
    rows = np.repeat(np.arange(len(first)), counts)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows, first[rows] + within


def portions(weights: Rows) -> Iterator[slice]:
    """Cuts rows with these weights into pieces of about one step, of at least one row."""
    until = np.cumsum(weights)
    start = 0
    while start < len(until):
        limit = until[start] - weights[start] + STEP_ROWS
        stop = max(start + 1, int(np.searchsorted(until, limit, side="right")))
        yield slice(start, stop)
        start = stop
