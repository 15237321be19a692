"""Finds the windows that changed panes belong to, and all panes of these windows.

A pane is in many windows and a window has many panes, so the code never builds all pairs. It goes through the windows
of a key in order: each window looks up only the panes that the window before it did not have.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock.operators.window.closing import portions, spread
from penstock.operators.window.panes import Hashes
from penstock.operators.window.windows import RegularWindow
from penstock.state.keys import Flags, Rows


def windows_with(window: RegularWindow, ids: Rows, panes: Hashes) -> Iterator[tuple[Rows, Hashes]]:
    """The windows of changed panes of the keys `ids`, each once, by key and time, in bounded portions.

    Gives rows, of `ids` and `panes`, with their key, and a window for each.
    """
    order = np.lexsort((panes, ids))
    ids, panes = ids[order], panes[order]
    first, last = window.first_window_of(panes), window.last_window_of(panes)
    same = ids[1:] == ids[:-1]
    first[1:] = np.where(same, np.maximum(first[1:], last[:-1] + 1), first[1:])
    begin, end = first * window.panes_per_step, last * window.panes_per_step + window.panes_per_window
    begin[1:] = np.where(same, np.maximum(begin[1:], end[:-1]), begin[1:])
    for some in portions(np.maximum(end - begin, last - first + 1)):
        rows, windows = spread(first[some], last[some])
        yield order[some][rows], windows


class RunsOfPanes:
    """Windows of the keys `ids`, by key and time, and all their panes, by key and time."""

    def __init__(self, window: RegularWindow, ids: Rows, windows: Hashes) -> None:
        self._length = window.panes_per_window
        self.windows = windows
        self._begin = windows * window.panes_per_step
        self._end = self._begin + self._length
        same = ids[1:] == ids[:-1]
        self._begin[1:] = np.where(same, np.maximum(self._begin[1:], self._end[:-1]), self._begin[1:])

    def panes(self) -> tuple[Rows, Hashes]:
        """Each pane once, with the first of the windows that have it."""
        return spread(self._begin, self._end - 1)

    def combined(self, found: Flags) -> Iterator[tuple[slice, Rows, Rows]]:
        """In bounded portions: windows, and the positions of their panes among those that were found.

        For each position also the number of its window within the portion.
        """
        before = np.concatenate([[0], np.cumsum(found)])
        stops = np.cumsum(self._end - self._begin)
        # The panes of a window follow each other, and its last one is the last that it brought.
        first, last = before[stops - self._length], before[stops] - 1
        for some in portions(last - first + 1):
            numbers, positions = spread(first[some], last[some])
            yield some, positions, numbers
