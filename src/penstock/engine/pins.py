"""Files that must stay although no retained checkpoint names them any more: a savepoint is being copied from them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.engine.checkpoints import Checkpoints
from penstock.protocol.manifest import Manifest


class Pins:
    """Files that the collector must not delete. Pins live in memory: when the driver is gone, so are its copies."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._lock = threading.Lock()
        self._pinned: list[frozenset[str]] = []

    def files(self) -> frozenset[str]:
        """Asked by the collector after it deleted old manifests and before it deletes files."""
        with self._lock:
            return frozenset().union(*self._pinned)

    def hold_newest(self, newest: Callable[[], Manifest]) -> tuple[Manifest, Callable[[], None]]:
        """Pins the newest checkpoint; returns it, and a function that ends the pin.

        The checkpoint might be retired between asking for it and holding it. Its manifest goes first then: if that is
        still there after holding, the collector has yet to ask for pins, and will see this one.

        Raises: `NoSuchCheckpoint` when a newer driver retired it.
        """
        while True:
            manifest = newest()
            release = self._hold(manifest.files())
            if self._checkpoints.holds(manifest.checkpoint):
                return manifest, release
            release()
            if newest() is manifest:
                self._checkpoints.restorable(manifest.checkpoint)

    def _hold(self, files: frozenset[str]) -> Callable[[], None]:
        with self._lock:
            self._pinned.append(files)

        def release() -> None:
            with self._lock:
                self._pinned.remove(files)

        return release
