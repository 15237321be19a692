"""Removes files that no retained checkpoint names, in the background.

A crash between any two steps leaves at most files that no checkpoint names; the next sweep finds them.

The manifest with which a driver took over, and the last one before it, are never deleted, only marked as retired: an
older driver that was paused needs one of these names next, and must find it taken whenever it goes on. It needs the
last one where the storage did not tell whether that was published, and it tries again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from penstock.engine.background import AT_ONCE, WHEN_WOKEN, Background, Pause, Spawn
from penstock.engine.checkpoints import Checkpoints
from penstock.errors import NoSuchCheckpoint, PenstockError
from penstock.protocol import hung, leases
from penstock.protocol.garbage import garbage, left_plans, retired, written_for
from penstock.protocol.ids import NO_CHECKPOINT, CheckpointId, Generation, next_checkpoint
from penstock.protocol.layout import DATA_FOLDERS, HUNG, PLANS, READERS, manifest_path
from penstock.protocol.manifest import Manifest

SWEEP_EVERY = 50
"""Checkpoints between two full listings; in between, only files that drop out of retained manifests are deleted."""

LEFTOVER_S = 3600.0
"""A temporary file that did not change for this long was left by a crash."""


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._checkpoints, self._generation, self._retain = checkpoints, generation, retain
        self._pinned, self._clock = pinned, clock
        self._on_failure = on_failure
        self._retained: dict[CheckpointId, frozenset[str]] = {}
        self._retired: dict[CheckpointId, frozenset[str]] = {}
        """Files of checkpoints whose manifest is gone, until they are deleted."""
        self._leases: leases.Leases | None = None
        self._unread: set[CheckpointId] = set()
        self._fences: set[CheckpointId] = set()
        self._published: list[Manifest] = []
        self._since_sweep = SWEEP_EVERY
        self._lock = threading.Lock()
        self._ending = False
        self._background: Background = spawn("penstock-collector", self.step, on_failure)

    def start(self, newest: CheckpointId) -> None:
        """Learns what older checkpoints than `newest`, the driver's first, need; then goes on in the background."""
        self._unread = set(self._checkpoints.ids())
        before = max((checkpoint for checkpoint in self._unread if checkpoint < newest), default=newest)
        self._fences |= {before, newest}
        self._learn()
        self._background.start()

    def _learn(self) -> None:
        """Reads older manifests; one that cannot be read now is tried again, its files are left alone meanwhile."""
        before: Manifest | None = None
        for checkpoint in sorted(self._unread):
            with suppress(PenstockError):
                try:
                    manifest = self._checkpoints.read(checkpoint)
                except NoSuchCheckpoint:  # retired since it was listed, by the driver before this one
                    self._unread.remove(checkpoint)
                    continue
                self._retained[checkpoint] = manifest.files()
                self._unread.remove(checkpoint)
                if before is None:
                    self._fences.add(checkpoint)
                elif before.generation != manifest.generation:
                    self._fences |= {before.checkpoint, checkpoint}
                before = manifest

    def published(self, manifest: Manifest) -> None:
        with self._lock:
            self._published.append(manifest)
        self._background.wake()

    def finish(self, timeout_s: float | None = None) -> bool:
        """Ends the collector; False when it does not end in time. The next driver's first sweep removes what is
        left."""
        with self._lock:
            self._ending = True
        self._background.wake()
        return self._background.join(timeout_s)

    def step(self) -> Pause:
        """Collects after everything that was published since the last step."""
        with self._lock:
            batch, self._published = self._published, []
            if not batch:
                return None if self._ending else WHEN_WOKEN
        try:
            self._collect(batch)
        except Exception as error:  # garbage is harmless; a failed deletion must not stop the stream
            self._on_failure(error)
        return AT_ONCE

    def _retire(self, checkpoint: CheckpointId) -> None:
        if checkpoint in self._fences:
            self._checkpoints.mark_retired(checkpoint)
        else:
            self._checkpoints.store.delete([manifest_path(checkpoint)])

    def _collect(self, published: list[Manifest]) -> None:
        self._learn()
        for manifest in published:
            self._retained[manifest.checkpoint] = manifest.files()
        held = (self._leases or self._ask_readers()).held
        for checkpoint in retired(self._retained, self._retain, held):
            self._retire(checkpoint)
            self._retired[checkpoint] = self._retained.pop(checkpoint)
        # Both are asked after the manifests are gone: a savepoint pins its checkpoint, and a reader leaves its lease,
        # before they look for the manifest.
        held, pinned = self._ask_readers().held, self._pinned()
        gone = [checkpoint for checkpoint in self._retired if checkpoint not in held]
        dropped = set[str]().union(*map(self._retired.pop, gone))
        needed = (*reversed(self._retained.values()), *self._retired.values(), pinned)
        for part in needed:  # the first has most of them, so the rest is soon looked through
            dropped -= part
        self._delete(dropped)
        self._since_sweep += len(published)
        if self._since_sweep >= SWEEP_EVERY:
            self._since_sweep = 0
            files = [entry.path for folder in DATA_FOLDERS for entry in self._checkpoints.store.list(folder)]
            newest = published[-1].checkpoint
            self._retire_strays(newest)
            every = frozenset[str]().union(*needed)
            self._delete(garbage(files, every, generation=self._generation, published=newest))
            signs = [entry.path for entry in self._checkpoints.store.list(HUNG)]
            self._checkpoints.store.delete(
                path for path in signs if hung.is_over(path, next_checkpoint(newest), self._generation)
            )
            plans = [entry.path for entry in self._checkpoints.store.list(PLANS)]
            self._checkpoints.store.delete(left_plans(plans, generation=self._generation, published=newest))
            self._checkpoints.store.delete(entry.path for entry in self._checkpoints.store.leftovers(LEFTOVER_S))

    def _ask_readers(self) -> leases.Leases:
        """Which checkpoints readers hold; removes leases that have run out."""
        store = self._checkpoints.store
        paths = [entry.path for entry in store.list(READERS)]
        self._leases = leases.looked(self._leases or leases.Leases(), paths, self._clock())
        if self._leases.over:
            store.delete(self._leases.over)
        return self._leases

    def _retire_strays(self, newest: CheckpointId) -> None:
        """Retires manifests of drivers that were paused before their takeover and used a name that retention had freed.
        Only this, newer driver can tell that it did not begin with them."""
        for checkpoint in self._checkpoints.ids():
            if checkpoint < newest and checkpoint not in self._retained and checkpoint not in self._unread:
                self._checkpoints.mark_retired(checkpoint)

    def _delete(self, files: Iterable[str]) -> None:
        """Deletes files, except those that an unreadable checkpoint may name.

        A newer driver may have gone back to a checkpoint whose manifest was there until now. It claims a generation
        before it looks for that manifest. So either its claim is seen here and the files stay, or it finds none.
        """
        unknown = max(self._unread, default=NO_CHECKPOINT)
        found = sorted([file for file in files if written_for(file) > unknown])
        if found and not self._checkpoints.superseded(self._generation):
            self._checkpoints.store.delete(found)
