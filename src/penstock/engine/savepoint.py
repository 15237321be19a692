"""Savepoints: a self-contained copy of one checkpoint, with in-flight data, taken while epochs go on (B14).

A savepoint is a checkpoint folder with one checkpoint in it. It is written beside its place and gets its name last;
on one file system its files are hard links, so it costs no space until the original's are deleted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.engine.checkpoints import Checkpoints
from penstock.engine.pins import Pins
from penstock.engine.transfer import Transfer
from penstock.errors import PenstockError
from penstock.protocol.manifest import Manifest
from penstock.store import open_store
from penstock.store.base import Store
from penstock.store.staging import Staging, require_empty, stage


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A finished savepoint: `checkpoint` is the one it holds, `bytes` what its files have."""

    path: str
    checkpoint: int
    rows_in_flight: int
    files: int
    bytes: int
    duration_s: float


class SavepointJob:
    """A savepoint in the making: `step` copies one file. Waiting for it never stops an epoch."""

    def __init__(
        self,
        manifest: Manifest,
        origin: Store,
        path: str,
        *,
        release: Callable[[], None] = lambda: None,
        on_end: Callable[[SavepointJob], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manifest, self._origin, self.path = manifest, origin, path
        self._release, self._on_end, self._clock = release, on_end, clock
        self._started_s = clock()
        self._staging: Staging | None = None
        self._transfer: Transfer | None = None
        self._savepoint: Savepoint | None = None
        self._ended = threading.Event()
        self.error: PenstockError | None = None
        self._thread = threading.Thread(target=self.run, name="penstock-savepoint", daemon=True)

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    @property
    def checkpoint(self) -> int:
        return self._manifest.checkpoint

    def result(self, timeout: float | None = None) -> Savepoint:
        """Waits for the end.

        Raises: the `PenstockError` that ended it; `TimeoutError`.
        """
        if not self._ended.wait(timeout):
            raise TimeoutError(f"the savepoint {self.path} is not finished after {timeout} s")
        if self.error is not None:
            raise self.error
        assert self._savepoint is not None
        return self._savepoint

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def run(self) -> None:
        """All steps."""
        while self.step():
            pass

    def step(self) -> bool:
        """Does the next thing; False at the end. Nothing is under the final name before everything is."""
        try:
            self._savepoint = self._next()
        except PenstockError as error:
            self.error = error
        except BaseException as error:  # the one who waits must learn of it (B12)
            self.error = PenstockError(f"{type(error).__name__}: {error}", cause="a fault in Penstock")
        if self._savepoint is None and self.error is None:
            return True
        if self.error is not None and self._staging is not None:
            self._staging.discard()
        self._release()
        self._on_end(self)
        self._ended.set()
        return False

    def _next(self) -> Savepoint | None:
        if self._staging is None or self._transfer is None:
            self._staging = stage(open_store(self.path))
            self._transfer = Transfer(self._manifest, self._origin, self._staging.store)
            return None
        if self._transfer.step():
            return None
        written = Checkpoints(self._staging.store).publish(self._manifest)
        self._staging.finish()
        return Savepoint(
            path=self.path,
            checkpoint=self._manifest.checkpoint,
            rows_in_flight=self._manifest.rows_in_flight,
            files=self._transfer.files,
            bytes=self._transfer.bytes + written,
            duration_s=self._clock() - self._started_s,
        )


def take_savepoint(checkpoints: Checkpoints, manifest: Manifest, path: str) -> Savepoint:
    """A savepoint of a query that does not run.

    Raises: `SavepointRefused`, `MissingFile`, `CorruptFile`, `StorageFailed`.
    """
    job = SavepointJob(manifest, checkpoints.store, path)
    job.run()
    return job.result()


class Savepoints:
    """The savepoints of a running query, each copied by a thread of its own."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        pins: Pins,
        newest: Callable[[], Manifest],
        on_end: Callable[[SavepointJob], None],
    ) -> None:
        self._checkpoints, self._pins, self._newest, self._on_end = checkpoints, pins, newest, on_end
        self._jobs: list[SavepointJob] = []

    def job(self, path: str) -> SavepointJob:
        """A savepoint of the newest checkpoint, pinned and not yet begun.

        Raises: `SavepointRefused`.
        """
        require_empty(open_store(path))
        manifest, release = self._pins.hold_newest(self._newest)
        return SavepointJob(manifest, self._checkpoints.store, path, release=release, on_end=self._on_end)

    def begin(self, path: str) -> SavepointJob:
        """Raises: `SavepointRefused`."""
        job = self.job(path)
        self._jobs = [other for other in self._jobs if not other.done] + [job]
        job.start()
        return job

    def finish(self) -> None:
        """Waits for those that run."""
        for job in self._jobs:
            job.join()
