"""A reader asks a running query to keep the files of a checkpoint while it reads them.

The only thing that reading writes: a lease of no bytes in ``readers/``, removed afterwards. Where it cannot be written,
as with credentials that may only read, reading goes on without. A savepoint has no driver that could delete anything:
nothing is written there.
"""

from __future__ import annotations

import logging
import secrets
import time
from contextlib import suppress

from penstock.errors import NoSuchCheckpoint, PenstockError
from penstock.protocol.ids import CheckpointId
from penstock.protocol.layout import GENERATIONS, READERS, Lease, manifest_path, retired_path
from penstock.protocol.leases import RENEW_S, stale
from penstock.store.base import AlreadyExists, Store

_log = logging.getLogger("penstock")


class Holding:
    """A checkpoint that is held; `release` ends that, and so does the collector some minutes after the last `renew`."""

    def __init__(self, store: Store, checkpoint: CheckpointId) -> None:
        """Raises: `NoSuchCheckpoint` when it was retired before the lease could be seen."""
        self._store, self._checkpoint = store, checkpoint
        self._path: str | None = None
        if store.list(GENERATIONS):
            self._take()
        # The collector looks for leases after it has deleted a manifest. One that is still there now is held.
        if not store.exists(manifest_path(checkpoint)) or store.exists(retired_path(checkpoint)):
            self.release()
            raise NoSuchCheckpoint(
                f"checkpoint {checkpoint} of {store.url} was retired before it could be read",
                cause="the query went on; it keeps the newest `retain` checkpoints",
                next_step="read again, or leave the checkpoint out for the newest",
            )

    def renew(self) -> None:
        """Cheap unless it is time; call it between two batches."""
        if self._path is not None and time.monotonic() - self._taken_s > RENEW_S:
            before, self._path = self._path, None
            self._take()
            _remove(self._store, before)

    def release(self) -> None:
        if self._path is not None:
            _remove(self._store, self._path)
            self._path = None

    def _take(self) -> None:
        clock_s = int(time.time())
        path = Lease(self._checkpoint, clock_s, secrets.token_hex(8)).path
        self._taken_s = time.monotonic()
        try:
            self._store.create(path, b"")
            self._path = path
            self._store.delete(stale([entry.path for entry in self._store.list(READERS)], clock_s))
        except (PenstockError, AlreadyExists, OSError) as error:
            _log.debug("no lease on checkpoint %s of %s: %s", self._checkpoint, self._store.url, error)


def _remove(store: Store, path: str) -> None:
    """One that stays runs out by itself."""
    with suppress(PenstockError, OSError):
        store.delete([path])
