"""Savepoints: a self-contained copy of one checkpoint, with in-flight data, taken while epochs go on.

A savepoint is a checkpoint folder with one checkpoint in it. It counts with its manifest, which is written last; a
local folder is written beside its place and gets its name after that. On one file system its files are hard links, so
it costs no space until the original's are deleted.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.engine.background import AT_ONCE, Background, Pause, Spawn, wait_for
from penstock.engine.checkpoints import Checkpoints
from penstock.engine.commitlog import bring_commits
from penstock.engine.pins import Pins
from penstock.engine.transfer import Transfer
from penstock.errors import PenstockError
from penstock.protocol.ids import CheckpointId
from penstock.protocol.manifest import Manifest
from penstock.store.base import Store
from penstock.store.staging import Staging, require_empty, stage


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A finished savepoint: `checkpoint` is the one it holds, `bytes` what its files have."""

    path: str
    checkpoint: CheckpointId
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
        target: Store,
        path: str,
        *,
        release: Callable[[], None] = lambda: None,
        on_end: Callable[[SavepointJob], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.manifest, self._origin, self._target, self.path = manifest, origin, target, path
        self._release, self._on_end, self._clock = release, on_end, clock
        self._started_s = clock()
        self._staging: Staging | None = None
        self._transfer: Transfer | None = None
        self.savepoint: Savepoint | None = None
        self._ended = threading.Event()
        self.steps = 0
        """Files copied so far, to show that the savepoint gets on."""
        self.error: PenstockError | None = None

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    @property
    def checkpoint(self) -> CheckpointId:
        return self.manifest.checkpoint

    def result(self, timeout: float | None = None) -> Savepoint:
        """Waits for the end.

        Raises: the `PenstockError` that ended it; `TimeoutError`.
        """
        if not wait_for(self._ended, timeout):
            raise TimeoutError(f"the savepoint {self.path} is not finished after {timeout} s")
        if self.error is not None:
            raise self.error
        assert self.savepoint is not None
        return self.savepoint

    def step(self) -> Pause:
        """Does the next thing. There is no savepoint under the final name before everything of it is."""
        self.steps += 1
        try:
            self.savepoint = self._next()
        except PenstockError as error:
            self._end(error)
        except Exception as error:  # the waiting thread must learn of it
            self.die(error)
        else:
            if self.savepoint is None:
                return AT_ONCE
            self._end(None)
        return None

    def die(self, error: BaseException) -> None:
        self._end(PenstockError(f"{type(error).__name__}: {error}", cause="a fault in Penstock"))

    def _end(self, error: PenstockError | None) -> None:
        self.error = error
        if error is not None and self._staging is not None:
            self._staging.discard()
        self._release()
        self._on_end(self)
        self._ended.set()

    def _next(self) -> Savepoint | None:
        if self._staging is None or self._transfer is None:
            self._staging = stage(self._target)
            self._transfer = Transfer(self.manifest, self._origin, self._staging.store)
            return None
        if self._transfer.step():
            return None
        bring_commits(self._origin, self._staging.store, self.manifest)
        written = Checkpoints(self._staging.store).publish(self.manifest)
        self._staging.finish()
        return Savepoint(
            path=self.path,
            checkpoint=self.manifest.checkpoint,
            rows_in_flight=self.manifest.rows_in_flight,
            files=self._transfer.files,
            bytes=self._transfer.bytes + written,
            duration_s=self._clock() - self._started_s,
        )


def take_savepoint(manifest: Manifest, origin: Store, target: Store, path: str) -> Savepoint:
    """A savepoint, made by the caller.

    Raises: `SavepointRefused`, `MissingFile`, `CorruptFile`, `StorageFailed`.
    """
    job = SavepointJob(manifest, origin, target, path)
    while job.step() is not None:
        pass
    return job.result()


class Savepoints:
    """The savepoints of a running query, each made in the background."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        newest: Callable[[], Manifest],
        open_target: Callable[[str], Store],
        spawn: Spawn,
        on_end: Callable[[SavepointJob], None],
    ) -> None:
        self._checkpoints, self._newest, self._open, self._on_end = checkpoints, newest, open_target, on_end
        self._spawn = spawn
        self._running: list[tuple[SavepointJob, Background]] = []
        self.pins = Pins(checkpoints)

    def require_place(self, path: str) -> None:
        """Raises: `SavepointRefused` where no savepoint can be made."""
        require_empty(self._open(path))

    def begin(self, path: str) -> SavepointJob:
        """A savepoint of the newest checkpoint.

        Raises: `SavepointRefused`, `NoSuchCheckpoint`.
        """
        self.require_place(path)
        manifest, release = self.pins.hold_newest(self._newest)
        job = SavepointJob(
            manifest, self._checkpoints.store, self._open(path), path, release=release, on_end=self._on_end
        )
        background = self._spawn("penstock-savepoint", job.step, job.die)
        self._running = [(other, steps) for other, steps in self._running if not other.done] + [(job, background)]
        background.start()
        return job

    def finish(self, silent_s: float = math.inf) -> bool:
        """Waits for those that are being made; False when one has not copied a file for `silent_s`."""
        for job, background in self._running:
            steps = -1
            while not background.join(silent_s if silent_s < math.inf else None):
                if job.steps == steps:
                    return False
                steps = job.steps
        return True
