"""State files as the driver keeps them, for tests of keyed state."""

from __future__ import annotations

import itertools

from penstock.protocol.advance import advance_state
from penstock.protocol.keygroups import KeyGroupRange, range_of
from penstock.protocol.manifest import StateFile
from penstock.protocol.report import StateReport
from penstock.records import StateSchema
from penstock.state.keyed import KeyedState, StateChange
from penstock.store.base import Store


class Checkpoint:
    """The driver's view: which state files are valid where, oldest first."""

    def __init__(self, store: Store, schema: StateSchema, max_parallelism: int) -> None:
        self.store, self.schema, self.max_parallelism = store, schema, max_parallelism
        self.files: list[StateFile] = []
        self._names = (f"state/{number}.arrow" for number in itertools.count())
        self._opened: list[KeyedState] = []

    def new_name(self) -> str:
        return next(self._names)

    def open(self, subtask: int = 0, parallelism: int = 1) -> KeyedState:
        groups = range_of(subtask, parallelism, self.max_parallelism)
        state = KeyedState.open(self.store, self.files_of(groups), groups, self.schema, self.max_parallelism)
        self._opened.append(state)
        return state

    def files_of(self, groups: KeyGroupRange) -> list[StateFile]:
        return [file for file in self.files if any(part.intersect(groups) for part in file.ranges)]

    def accept(self, change: StateChange) -> None:
        report = StateReport(table="", added=change.added, replaced=change.replaced)
        self.files = list(advance_state(tuple(self.files), [report]))

    def finish(self, state: KeyedState) -> StateChange:
        """Flushes, accepts the change and closes."""
        change = state.flush(self.new_name)
        self.accept(change)
        state.close()
        return change

    def close(self) -> None:
        for state in self._opened:
            state.close()
