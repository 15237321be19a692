"""Removes files that no retained checkpoint names, in the background (B13).

A crash between any two steps leaves at most files that nobody names; the next sweep finds them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.engine.background import AT_ONCE, WHEN_WOKEN, Background, Pause, Spawn
from penstock.engine.checkpoints import DATA_FOLDERS, Checkpoints, manifest_path
from penstock.errors import PenstockError
from penstock.protocol.garbage import garbage, retired
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.manifest import Manifest

SWEEP_EVERY = 50
"""Checkpoints between two full listings; in between, only files that drop out of retained manifests are deleted."""

LEFTOVER_S = 3600.0
"""A temporary file that nobody has written to for so long was left by a crash."""


class Collector:
    """Deletes old manifests, then the files that only they named; sweeps leftovers of failed attempts now and then."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        generation: Generation,
        retain: int,
        on_failure: Callable[[BaseException], None],
        spawn: Spawn,
        pinned: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self._checkpoints, self._generation, self._retain = checkpoints, generation, retain
        self._pinned = pinned
        self._on_failure = on_failure
        self._retained: dict[CheckpointId, frozenset[str]] = {}
        self._published: list[Manifest] = []
        self._since_sweep = SWEEP_EVERY
        self._lock = threading.Lock()
        self._ending = False
        self._background: Background = spawn("penstock-collector", self.step, on_failure)

    def start(self) -> None:
        """Learns what older checkpoints need, then goes on in the background."""
        for checkpoint in self._checkpoints.ids():
            try:
                self._retained[checkpoint] = self._checkpoints.read(checkpoint).files()
            except PenstockError:
                self._since_sweep = -1  # what a damaged manifest needs is not known: no sweep in this run
        self._background.start()

    def published(self, manifest: Manifest) -> None:
        with self._lock:
            self._published.append(manifest)
        self._background.wake()

    def finish(self) -> None:
        with self._lock:
            self._ending = True
        self._background.wake()
        self._background.join()

    def step(self) -> Pause:
        """Collects after everything that was published since the last step."""
        with self._lock:
            batch, self._published = self._published, []
            if not batch and self._ending:
                return None
        if batch:
            try:
                self._collect(batch)
            except Exception as error:  # garbage is harmless; a failed deletion must not stop the stream
                self._on_failure(error)
        # Again at once after work: a wake-up that came before this step may have been about the end.
        return AT_ONCE if batch else WHEN_WOKEN

    def _collect(self, published: list[Manifest]) -> None:
        store = self._checkpoints.store
        for manifest in published:
            self._retained[CheckpointId(manifest.checkpoint)] = manifest.files()
        dropped: set[str] = set()
        for checkpoint in retired(self._retained, self._retain):
            store.delete([manifest_path(checkpoint)])
            dropped |= self._retained.pop(checkpoint)
        # Asked after the manifests are gone: who pins a checkpoint looks for its manifest afterwards.
        needed = self._pinned().union(*self._retained.values())
        store.delete(sorted(dropped - needed))
        if self._since_sweep >= 0:
            self._since_sweep += len(published)
        if self._since_sweep >= SWEEP_EVERY:
            self._since_sweep = 0
            files = [entry.path for folder in DATA_FOLDERS for entry in store.list(folder)]
            newest = CheckpointId(published[-1].checkpoint)
            store.delete(garbage(files, needed, generation=self._generation, published=newest))
            store.delete(entry.path for entry in store.leftovers(LEFTOVER_S))
