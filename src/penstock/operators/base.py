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
    """The checkpoint that this epoch will become."""
    now: int = 0
    """Processing time of the epoch, as in `Time`."""
    clock: Callable[[], float] = lambda: 0.0
    """The subtask's clock in seconds; only differences mean something."""

    @property
    def state(self) -> KeyedState:
        """The operator's main table of state."""
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
        """Counts for people, by name, such as late rows. Asked once, after `finish`; the checkpoint adds them up."""
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
        """Does what is due by the watermark of each key group and by processing time.

        Called at the beginning of an epoch and whenever the watermark of a key group has moved, always between two
        slices. It yields every few thousand rows, about every 20 ms, an empty batch if it has no rows: the barrier can
        end it after each yield. It never ends after a `Side`, so yield side outputs before the batch that they belong
        to. State must be up to date at each yield: the generator may not be resumed, and then the next epoch calls
        `advance` again for the rest.
        """
        ...

    def next_due(self) -> Due:
        """When the operator has something to do next. Asked once, after `finish`. The answer may be too early, never
        too late."""
        ...


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Rows of a slice that the operator has not finished. Slices are numbered from 0 in the order of `process`."""

    slice: int
    rows: npt.NDArray[np.int64]


class ConcurrentOperator(Operator, Protocol):
    """An operator at the head of a stage that works on several slices at once: `process` only begins one.

    A row is consumed once the operator has yielded its result. Until then it stays in flight.
    """

    def room(self, left_s: float) -> int:
        """How many rows the operator takes now, given the time until the barrier; 0: none."""
        ...

    def collect(self, wait_s: float) -> Iterator[tuple[int | None, Emitted]]:
        """Waits up to `wait_s` for a result, and yields the rows that may leave, with their `Records.arrival`."""
        ...

    @property
    def open_slices(self) -> Collection[int]:
        """The numbers of the slices that have unfinished rows."""
        ...

    @property
    def busy(self) -> bool:
        """Whether calls are running that `collect` can wait for."""
        ...

    @property
    def patience_s(self) -> float:
        """How long the barrier must wait, so that every epoch makes progress."""
        ...

    def unfinished(self) -> list[Unfinished]:
        """Cancels running calls and returns the rows that are not finished."""
        ...

    def close(self) -> None:
        """Cancels running calls. Always called."""
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
        """By output column, what the operator computes. A restart that computes something else must not use the
        state."""
        ...

    @property
    def broadcast_tables(self) -> frozenset[str]:
        """Those of `state_tables` that are the same in all subtasks, because only broadcast rows change them."""
        ...

    @property
    def output_keys(self) -> tuple[str, ...]:
        """The input columns with the key that results belong to. Results that still have these columns stay together
        behind the operator. Empty: results belong to no key."""
        ...

    @property
    def own_time(self) -> OwnTime | None:
        """The event time that the operator makes; None: that of its inputs, if the output still has the column."""
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
        """Whether larger slices are worth waiting for, because user code is called once per key and slice."""
        ...

    @property
    def keeps_order(self) -> bool:
        """Whether a concurrent operator emits rows in the order in which it got them."""
        ...

    @property
    def hands_on(self) -> bool:
        """Whether the main output has only input rows, unchanged, so that each row still has its key."""
        ...

    @property
    def does_nothing(self) -> bool:
        """Whether every row leaves unchanged, at no cost."""
        ...

    @property
    def emits_at_end(self) -> bool:
        """Whether output comes from `finish` or `advance`: then what follows becomes a stage of its own, so that slow
        code behind it stays interruptible."""
        ...

    @property
    def step_s_max(self) -> float:
        """The longest step that the operator's own timeout allows; 0: it has no timeout."""
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
