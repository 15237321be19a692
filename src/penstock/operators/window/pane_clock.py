"""How far windows are closed, per key group: a row of state for each key group that has entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.operators.window.panes import Hashes
from penstock.protocol.keygroups import KeyGroupRange
from penstock.records import NO_WATERMARK, StateSchema

if TYPE_CHECKING:
    from penstock.state.keyed import KeyedState

CLOCK_STATE = "progress"  # as checkpoints name it
CLOCK_SCHEMA = StateSchema(
    pa.schema([pa.field("key_group", pa.int32())]),
    pa.schema([pa.field(name, pa.int64()) for name in ("first", "last", "done", "target", "place")]),
)

NEVER = int(np.iinfo(np.int64).max)


class PaneClock:
    """Arrays by key group: entries lie in the panes `first` to `last`, none if `last` is before `first`.

    All work up to the watermark `done` is done. Of the work up to `target`, places before `place` are done. `stepped`
    marks key groups in which one of these moved because work was due.
    """

    def __init__(self, groups: KeyGroupRange, state: KeyedState) -> None:
        self._groups = groups
        self._state = state
        self.first = np.full(len(groups), NEVER, np.int64)
        self.last = np.full(len(groups), NO_WATERMARK, np.int64)
        self.done = np.full(len(groups), NO_WATERMARK, np.int64)
        self.target = np.full(len(groups), NO_WATERMARK, np.int64)
        self.place = np.zeros(len(groups), np.int64)
        for batch in state.scan():
            mine = batch.column(0).to_numpy() - groups.lo
            for array, column in zip(self._arrays(), batch.columns[1:], strict=True):
                array[mine] = column.to_numpy()
        self._stored = (self.first.copy(), self.last.copy())
        self.stepped = np.zeros(len(groups), np.bool_)

    def _arrays(self) -> tuple[Hashes, ...]:
        return (self.first, self.last, self.done, self.target, self.place)

    @property
    def alive(self) -> np.ndarray:
        return self.first <= self.last

    @property
    def halfway(self) -> np.ndarray:
        """Key groups whose work up to `target` is done in part."""
        return self.target > self.done

    def touch(self, groups: Hashes, panes: Hashes, watermarks: Hashes) -> None:
        """Entries are about to be written; a key group without any begins at its watermark."""
        dead = ~self.alive
        self.first[dead], self.last[dead] = NEVER, NO_WATERMARK
        self.done[dead] = self.target[dead] = watermarks[dead]
        self.place[dead] = 0
        self.keep(groups, panes)

    def keep(self, groups: Hashes, panes: Hashes) -> None:
        """Entries are written while their key group is being worked on."""
        np.minimum.at(self.first, groups - self._groups.lo, panes)
        np.maximum.at(self.last, groups - self._groups.lo, panes)

    def follow(self, watermarks: Hashes) -> None:
        """Nothing more is due up to these watermarks."""
        behind = ~self.halfway & (self.done < watermarks)
        self.done[behind] = self.target[behind] = watermarks[behind]

    def store(self) -> None:
        """Writes what changed. A `done` that only follows the watermark is not written: each epoch computes it
        again."""
        alive = self.alive
        changed = (alive != (self._stored[0] <= self._stored[1])) | (alive & self.stepped)
        for array, stored in zip((self.first, self.last), self._stored, strict=True):
            changed |= alive & (array != stored)
        rows = np.flatnonzero(changed)
        if len(rows):
            keys = pa.record_batch([pa.array((rows + self._groups.lo).astype(np.int32))], schema=CLOCK_SCHEMA.keys)
            values = [pa.array(array[rows]) for array in self._arrays()]
            self._state.update(
                rows + self._groups.lo, keys, pa.record_batch(values, schema=CLOCK_SCHEMA.values), ~alive[rows]
            )
