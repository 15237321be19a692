"""What moves between the parts of a subtask: rows with their hashes and their time, and the columns of state.

A leaf: in-flight data, state, operators and sinks may all import it.

Event time is kept per key group: a key group's watermark says that all rows before it have arrived, and it never goes
back, whatever is restored or rescaled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.protocol.ids import CheckpointId
from penstock.protocol.keygroups import KeyGroupRange, groups_of
from penstock.protocol.manifest import Segment, StateFile

NO_WATERMARK = int(np.iinfo(np.int64).min)
"""The value before the first watermark: no row is late, no timer is due."""


MAIN_STATE = ""
"""The name of an operator's only, or first, table of state."""


LATE = "late"
"""The side output of rows that came behind the watermark."""
DEAD_LETTERS = "dead_letters"
"""The side output for records that made an operator fail."""


@dataclass(frozen=True, slots=True)
class Time:
    """What a subtask knows about time at one moment; microseconds since 1970 UTC throughout."""

    groups: KeyGroupRange
    watermarks: npt.NDArray[np.int64]
    """One per key group of `groups`."""
    now: int
    """Processing time of the epoch, the same in all attempts of all subtasks; never goes back."""
    max_parallelism: int

    @property
    def lowest(self) -> int:
        return int(self.watermarks.min())

    @property
    def highest(self) -> int:
        return int(self.watermarks.max())

    def watermark_of(self, hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The watermark in effect for each key hash."""
        watermarks: npt.NDArray[np.int64] = self.watermarks[groups_of(hashes, self.max_parallelism) - self.groups.lo]
        return watermarks


@dataclass(frozen=True, slots=True)
class Records:
    """A slice of one input: the user's columns, the 64-bit key hash of each row, and the time they arrive at."""

    batch: pa.RecordBatch
    hashes: npt.NDArray[np.int64]
    port: int = 0
    time: Time | None = None
    arrival: CheckpointId | None = None
    """The epoch in which they came from the source; None for the running one. Rows that an operator makes of them have
    the same."""

    @property
    def rows(self) -> int:
        return self.batch.num_rows

    def slice(self, start: int, rows: int | None = None) -> Records:
        """Some of the rows, from `start` on."""
        stop = self.rows if rows is None else start + rows
        return Records(
            self.batch.slice(start, stop - start), self.hashes[start:stop], self.port, self.time, self.arrival
        )


@dataclass(frozen=True, slots=True)
class Side:
    """Rows for a side output of the operator."""

    output: str
    batch: pa.RecordBatch


Emitted: TypeAlias = "pa.RecordBatch | Side"


@dataclass(frozen=True, slots=True)
class Due:
    """The earliest moments at which an operator has something to do without input; None: never."""

    event_time: int | None = None
    processing_time: int | None = None
    last: int | None = None
    """The watermark at which everything that now waits for event time has come out; None: nothing would come out."""


@dataclass(frozen=True, slots=True)
class StateSchema:
    """Columns of one table of an operator's state."""

    keys: pa.Schema
    values: pa.Schema
    may_grow: bool = False
    """Whether a later release may add this table of state, or columns to it. Keys that are already there get nulls."""
    from_start: frozenset[str] = frozenset()
    """Value columns that cannot be added later: null means something else than nothing yet."""


Migration: TypeAlias = Callable[[pa.Table], pa.Table | pa.RecordBatch]
"""A function of the user that makes new rows of state of old ones."""


@dataclass(frozen=True, slots=True)
class MigrationTask:
    """A part of a table: where it is read and how it is to be written."""

    table: str
    """As the pipeline calls it."""
    old: StateSchema
    new: StateSchema
    files: tuple[StateFile, ...]
    groups: KeyGroupRange
    max_parallelism: int
    path: str
    """Of the new file."""


@dataclass(frozen=True, slots=True)
class MigratedPart:
    """What became of a part: the new file, if any key is left, and how many rows went through the function."""

    table: str
    file: StateFile | None
    rows: int


@dataclass(frozen=True, slots=True)
class RegroupTask:
    """State or rows in flight that are to be written for another number of key groups.

    Of a table of state: its kind of operator, its name there, where in the key the user's key is, and a range of key
    groups. Of rows in flight: a segment, and nothing of these.
    """

    old: int
    new: int
    paths: str
    """Of new files, with a place for a number."""
    name: str
    segment: Segment | None = None
    kind: str = ""
    part: str = ""
    schema: StateSchema | None = None
    user_key: tuple[int, int] = (0, 0)
    files: tuple[StateFile, ...] = ()
    groups: KeyGroupRange = field(default_factory=lambda: KeyGroupRange(0, 0))


@dataclass(frozen=True, slots=True)
class Regrouped:
    """New files of a table, or of an edge."""

    name: str
    files: tuple[StateFile, ...] = ()
    segment: Segment | None = None
