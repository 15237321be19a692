"""Brings one checkpoint from one folder into another: for savepoints, and to restore from elsewhere.

Brings everything but the manifest. The caller publishes that last, so that a folder holds a whole checkpoint or none. A
transfer that was cut off can be begun again: files that are there already stay, and are verified like the others.
"""

from __future__ import annotations

from contextlib import suppress

from penstock.engine.sourcelog import bring_source
from penstock.errors import CorruptFile
from penstock.protocol.manifest import Manifest, Segment, StateFile
from penstock.store.arrowfile import ArrowFile
from penstock.store.base import AlreadyExists, Store


class Transfer:
    """The files of one checkpoint on their way; each step brings or verifies one of them.

    All are brought before the first is verified: a query that runs in the origin may delete them at any time.
    """

    def __init__(self, manifest: Manifest, origin: Store, target: Store, query_id: str | None = None) -> None:
        """`query_id`: under which another streaming query goes on from the same offsets."""
        self._manifest, self._origin, self._target, self._query_id = manifest, origin, target, query_id
        entries: list[Segment | StateFile] = list({entry.path: entry for entry in manifest.entries()}.values())
        self._left, self._unverified = entries, list(entries)
        self._source_left = True
        self.bytes = 0
        self.files = 0

    def step(self) -> bool:
        """Brings the next file; False when all are there, durably, with the bytes that were written.

        Raises: `CorruptFile`, `MissingFile`, `StorageFailed`.
        """
        if self._left:
            entry = self._left.pop()
            with suppress(AlreadyExists):  # an earlier try had got this far
                self._target.adopt(entry.path, self._origin)
            self.bytes += entry.bytes
            self.files += 1
            return True
        if self._source_left:
            self._source_left = False
            self.bytes += bring_source(self._origin, self._target, self._manifest.source.batch_id, self._query_id)
            return True
        if self._unverified:
            self._verify(self._unverified.pop())
            return True
        return False

    def run(self) -> None:
        """All steps."""
        while self.step():
            pass

    def _verify(self, entry: Segment | StateFile) -> None:
        try:
            with ArrowFile(self._target, entry.path, entry.checksum) as file:
                file.verify()
        except CorruptFile as error:
            self._target.delete([entry.path])
            raise CorruptFile(
                f"{error.seen} (brought from {self._origin.url} to {self._target.url})",
                cause=error.cause,
                next_step="take the file from another copy, or choose another checkpoint",
                **error.fields,
            ) from error
