"""A new folder that counts with all its files or not at all: on a file system it gets its name last, on storage without
rename the caller writes last what makes it count."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, cast

from penstock.errors import PenstockError, SavepointRefused, storage_failed
from penstock.protocol.layout import SAVEPOINT_MARKER
from penstock.store.base import AlreadyExists, Store
from penstock.store.local import LocalStore, sync_folder


class Staging(Protocol):
    """A folder in the making; `store` is where to write until `finish` gives it its name."""

    @property
    def store(self) -> Store: ...
    def finish(self) -> None: ...
    def discard(self) -> None:
        """Removes what this job has written so far; never fails, since it runs after another error."""
        ...


def stage(target: Store) -> Staging:
    """Raises: `SavepointRefused` if the target holds anything already, or another job is at it; `StorageFailed`."""
    require_empty(target)
    return _LocalStaging(target.root) if isinstance(target, LocalStore) else _DirectStaging(target)


def require_empty(target: Store, but: str | None = None) -> None:
    """Nothing is there `but` one name. Raises: `SavepointRefused`."""
    in_the_way = isinstance(target, LocalStore) and target.root.exists() and not target.root.is_dir()
    found = [entry for entry in target.list("") if entry.path != but]
    if any(entry.path == SAVEPOINT_MARKER for entry in found):
        raise _being_written(target)
    if found or in_the_way:
        raise SavepointRefused(
            f"{target.url} {f'holds {len(found)} files' if found else 'is a file'}",
            cause="a savepoint is written into a folder that is new or empty",
            next_step="choose another path, or remove what is there",
            path=target.url,
        )


def _being_written(target: Store) -> SavepointRefused:
    return SavepointRefused(
        f"{target.url} holds {SAVEPOINT_MARKER}",
        cause="another savepoint is being written there, or its writer died",
        next_step="choose another path, or remove what is there once no job writes to it",
        path=target.url,
    )


class _LocalStaging:
    """A hidden folder beside the final one, renamed at the end; a crash leaves it under its hidden name."""

    def __init__(self, final: Path) -> None:
        self._final = final
        self._temp = final.parent / f".{final.name}.{uuid.uuid4().hex[:8]}.partial"
        self._store = LocalStore(self._temp)

    @property
    def store(self) -> Store:
        return self._store

    def finish(self) -> None:
        try:
            self._temp.rename(self._final)
            sync_folder(self._final.parent)
        except OSError as error:
            raise storage_failed(str(self._final), error) from error

    def discard(self) -> None:
        shutil.rmtree(self._temp, ignore_errors=True)


class _DirectStaging:
    """Storage without rename: files get their names at once, and the caller writes what makes the folder count last.

    A marker keeps other jobs away until then. The job that made the marker checks again that the folder is empty:
    another job may have run completely since the first look.
    """

    def __init__(self, target: Store) -> None:
        self._target = target
        try:
            target.create(SAVEPOINT_MARKER, b"")
        except AlreadyExists:
            raise _being_written(target) from None
        self._noting = _Noting(target)
        try:
            require_empty(target, but=SAVEPOINT_MARKER)
        except PenstockError:
            self.discard()
            raise

    @property
    def store(self) -> Store:
        return cast("Store", self._noting)

    def finish(self) -> None:
        """Everything is in its place."""
        self._target.delete([SAVEPOINT_MARKER])

    def discard(self) -> None:
        """Removes the file that makes the folder count first, the marker last."""
        with suppress(PenstockError):
            self._target.delete(reversed(self._noting.names))
            self._target.delete([SAVEPOINT_MARKER])


class _Noting:
    """A store that knows which names were made through it, or may have been: an answer can be lost."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.names: dict[str, None] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def create(self, path: str, data: bytes) -> None:
        with self._noted(path):
            self._store.create(path, data)

    def adopt(self, path: str, origin: Store, *, link: bool = True) -> None:
        with self._noted(path):
            self._store.adopt(path, origin, link=link)

    @contextmanager
    def _noted(self, path: str) -> Iterator[None]:
        known = path in self.names
        self.names[path] = None
        try:
            yield
        except AlreadyExists:
            if not known:
                del self.names[path]  # made by another job
            raise
