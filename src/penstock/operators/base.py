"""The protocol between an operator and the subtask that steps it.

A *spec* is part of the graph: a frozen value that travels to the subtasks and says names and schemas. It builds the
*operator*, which lives for one subtask attempt. The subtask measures how long each step takes and cuts the next slice
accordingly. An operator that has to measure by itself uses the subtask's clock, never one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.protocol.ids import NO_CHECKPOINT, CheckpointId
from penstock.protocol.keygroups import KeyGroupRange
from penstock.records import MAIN_STATE, Due, Emitted, Records, StateSchema, Time

if TYPE_CHECKING:
    from penstock.state.keyed import KeyedState


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """What an operator is built with: its tables of state by name, and its place."""

    states: Mapping[str, KeyedState] = field(default_factory=dict)
    subtask: int = 0
    groups: KeyGroupRange = KeyGroupRange(0, 1)  # noqa: RUF009 - immutable
    max_parallelism: int = 1
    checkpoint: CheckpointId = NO_CHECKPOINT
    """The one this epoch will become."""
    now: int = 0
    """Processing time of the epoch, as in `Time`."""
    clock: Callable[[], float] = lambda: 0.0
    """Seconds that pass in the subtask, from any beginning."""

    @property
    def state(self) -> KeyedState:
        """The operator's main table."""
        return self.states[MAIN_STATE]


class Operator(Protocol):
    """One attempt's running operator."""

    def process(self, records: Records) -> Iterator[Emitted]:
        """Takes one slice, yields output batches in the output schema."""
        ...

    def finish(self) -> Iterator[Emitted]:
        """Called once, after the last slice of the epoch; writes all changes into the state."""
        ...

    def counters(self) -> Mapping[str, int]:
        """What was counted in this attempt for people, such as late rows, by name; asked once, after `finish`. Summed
        up in the checkpoint."""
        ...


class OperatorDefaults:
    """An operator that holds nothing back until the end of an epoch, and counts nothing."""

    def finish(self) -> Iterator[Emitted]:
        return iter(())

    def counters(self) -> Mapping[str, int]:
        return {}


class TimedOperator(Operator, Protocol):
    """An operator that acts when time passes: windows, timers."""

    def advance(self, time: Time) -> Iterator[Emitted]:
        """Does what is due: for each key group what its watermark has passed, and what processing time has passed.

        Called at the beginning of an epoch and whenever the watermark of a key group has moved, always between two
        slices. It yields often (every few thousand rows, about every 20 ms), also an empty batch, because the barrier
        can end it after each yield, except that of a `Side`: what belongs together ends with a batch. At a yield the
        state must already say what the yielded rows say: the generator may not be resumed, and the next epoch then
        calls `advance` again for the rest.
        """
        ...

    def next_due(self) -> Due:
        """Asked once, after `finish`; may be too early, never too late."""
        ...


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Rows of the slice with this number, counted from 0 in the order of `process`, that the operator still holds."""

    slice: int
    rows: npt.NDArray[np.int64]


class ConcurrentOperator(Operator, Protocol):
    """An operator at the head of a stage that works on several slices at once: `process` only begins one.

    Rows it has not let go of by yielding what became of them are not consumed; they stay in flight.
    """

    def room(self, left_s: float) -> int:
        """How many rows may be begun now, with so much time until the barrier; 0: none."""
        ...

    def collect(self, wait_s: float) -> Iterator[tuple[int | None, Emitted]]:
        """Waits until something is done, so long at most, and yields what may leave, with its `Records.arrival`."""
        ...

    @property
    def open_slices(self) -> Collection[int]:
        """The numbers of the slices that have unfinished rows."""
        ...

    @property
    def busy(self) -> bool:
        """Whether something is going on that `collect` can wait for."""
        ...

    @property
    def patience_s(self) -> float:
        """How long the barrier must wait, so that every epoch makes progress."""
        ...

    def unfinished(self) -> list[Unfinished]:
        """Ends everything that goes on, and tells which rows are not done."""
        ...

    def close(self) -> None:
        """Ends everything that goes on; called in any case."""
        ...


@dataclass(frozen=True, slots=True)
class OwnTime:
    """The event time of what an operator emits, where it is not that of its inputs."""

    column: str | None
    """None: the output has no event time."""
    is_end: bool = False
    """Whether it is the end of a window, which is the first moment after it."""


class OperatorSpec(Protocol):
    """An operator as the graph knows it; `SpecDefaults` has the answers of a plain one."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def output_schema(self) -> pa.Schema: ...
    @property
    def side_outputs(self) -> Mapping[str, pa.Schema]: ...
    @property
    def state_tables(self) -> Mapping[str, StateSchema]:
        """Tables of keyed state by name, `MAIN_STATE` for the only one."""
        ...

    @property
    def computed(self) -> Mapping[str, str]:
        """By output column, what is computed, where another restart must not take its state for something else."""
        ...

    @property
    def broadcast_tables(self) -> frozenset[str]:
        """Those of `state_tables` that are the same in all subtasks, because only broadcast rows change them."""
        ...

    @property
    def output_keys(self) -> tuple[str, ...]:
        """The key that results belong to, by the columns that have it in the input: results that still have them stay
        together behind the operator. Empty: results belong to no key."""
        ...

    @property
    def own_time(self) -> OwnTime | None:
        """The event time that the operator makes; None: that of its inputs, where the output has their column."""
        ...

    @property
    def port_ranks(self) -> tuple[int, ...]:
        """One per input: inputs of a higher rank are held back while one of a lower rank has rows. Empty: all
        inputs take turns."""
        ...

    @property
    def timed(self) -> bool:
        """Whether the operator is a `TimedOperator`."""
        ...

    @property
    def concurrent(self) -> bool:
        """Whether the operator is a `ConcurrentOperator`: then it has one input and begins a stage."""
        ...

    @property
    def gathers(self) -> bool:
        """Whether many rows at once are worth waiting for, as user code is called once per key and slice."""
        ...

    @property
    def keeps_order(self) -> bool:
        """Whether an operator that holds rows lets go of them in the order in which it got them."""
        ...

    @property
    def hands_on(self) -> bool:
        """Whether every row of its main output is one that came, unchanged: so it still has its key."""
        ...

    @property
    def does_nothing(self) -> bool:
        """Whether every row leaves as it came, which costs nothing."""
        ...

    @property
    def emits_at_end(self) -> bool:
        """Whether output comes from `finish` or `advance`: then what follows becomes a stage of its own, so that slow
        code behind it stays interruptible."""
        ...

    @property
    def step_s_max(self) -> float:
        """How long a step may take that is bounded by a timeout of the operator's own; 0: it has none."""
        ...

    def build(self, context: OperatorContext) -> Operator: ...


class SpecDefaults:
    """A spec without state, side outputs and timers, whose inputs take turns."""

    @property
    def side_outputs(self) -> Mapping[str, pa.Schema]:
        return MappingProxyType({})

    @property
    def state_tables(self) -> Mapping[str, StateSchema]:
        return MappingProxyType({})

    @property
    def computed(self) -> Mapping[str, str]:
        return MappingProxyType({})

    @property
    def broadcast_tables(self) -> frozenset[str]:
        return frozenset()

    @property
    def output_keys(self) -> tuple[str, ...]:
        return ()

    @property
    def own_time(self) -> OwnTime | None:
        return None

    @property
    def port_ranks(self) -> tuple[int, ...]:
        return ()

    @property
    def timed(self) -> bool:
        return False

    @property
    def concurrent(self) -> bool:
        return False

    @property
    def gathers(self) -> bool:
        return False

    @property
    def keeps_order(self) -> bool:
        return True

    @property
    def hands_on(self) -> bool:
        return False

    @property
    def does_nothing(self) -> bool:
        return False

    @property
    def emits_at_end(self) -> bool:
        return False

    @property
    def step_s_max(self) -> float:
        return 0.0


class KeyedSpec(SpecDefaults):
    """A spec whose results belong to the key of the rows they are made of."""

    keys: tuple[str, ...]

    @property
    def output_keys(self) -> tuple[str, ...]:
        return self.keys
