"""Removes the table files of attempts that lost, also of those that were killed and could report nothing.

The folder ``attempts/`` holds one small list per attempt and sink, so the driver need not list the table. A crash
between removing files and forgetting their list leaves the list; removing a file twice does no harm.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from penstock.protocol.attempts import judge_attempts, remembered
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.layout import announcements
from penstock.store.base import Store
from penstock.store.paths import is_path
from penstock.text import printable

_log = logging.getLogger(__name__)


def _announced(path: str, data: bytes) -> list[str]:
    """The files that a list names. A name that leads out of the table is left alone: nothing needs the list."""
    names = data.decode("utf-8", "replace").split("\n")[:-1]
    if unsafe := [name for name in names if not is_path(name)]:
        _log.warning("%s names %d files that are none of a table, such as %s", path, len(unsafe), printable(unsafe[0]))
    return [name for name in names if is_path(name)]


class AttemptFiles:
    """What attempts announced for one sink."""

    def __init__(
        self,
        store: Store,
        sink: str,
        *,
        generation: Generation,
        taken_over: CheckpointId,
        owners: Mapping[CheckpointId, Generation],
    ) -> None:
        self._store, self._folder = store, announcements(sink)
        self._generation, self._taken_over, self._owners = generation, taken_over, owners
        self._lock = threading.Lock()
        self._published = taken_over
        self._winners: dict[CheckpointId, frozenset[str]] = {}
        self._due = True

    def published(self, checkpoint: CheckpointId, winners: frozenset[str]) -> None:
        """The attempts at this checkpoint are decided: `winners` are in it, all others lost."""
        with self._lock:
            self._published = checkpoint
            self._winners = remembered({**self._winners, checkpoint: winners}, checkpoint)
            self._due = True

    def sweep(self, remove: Callable[[Sequence[str]], None]) -> bool:
        """Removes the files of attempts that lost; says whether there was something to look at.

        A zombie that announces more after this is found by the next sweep.
        """
        with self._lock:
            due, self._due = self._due, False
            published, winners = self._published, self._winners
        if not due:
            return False
        verdict = judge_attempts(
            [entry.path for entry in self._store.list(self._folder)],
            generation=self._generation,
            taken_over=self._taken_over,
            owners=self._owners,
            published=published,
            winners=winners,
        )
        for path in verdict.lost:
            remove(_announced(path, self._store.read(path)))
        self._store.delete([*verdict.forget, *verdict.lost])
        return True
