"""A new folder that appears under its name with all its files or not at all."""

from __future__ import annotations

import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from penstock.errors import PenstockError, SavepointRefused, storage_failed
from penstock.store.base import Store
from penstock.store.local import LocalStore, sync_folder


class Staging(Protocol):
    """A folder in the making; `store` is where to write until `finish` gives it its name."""

    @property
    def store(self) -> Store: ...
    def finish(self) -> None: ...
    def discard(self) -> None:
        """Removes everything written so far; never fails, since it runs after another error."""
        ...


def stage(target: Store) -> Staging:
    """Raises: `SavepointRefused` if the target holds anything already."""
    require_empty(target)
    return _LocalStaging(target.root) if isinstance(target, LocalStore) else _DirectStaging(target)


def require_empty(target: Store) -> None:
    """Raises: `SavepointRefused`."""
    in_the_way = isinstance(target, LocalStore) and target.root.exists() and not target.root.is_dir()
    held = target.list("")
    if held or in_the_way:
        raise SavepointRefused(
            f"{target.url} {f'holds {len(held)} files' if held else 'is a file'}",
            cause="a savepoint is written into a folder that is new or empty",
            next_step="choose another path, or remove what is there",
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
    """Storage without rename: the caller writes what makes the folder count last."""

    def __init__(self, target: Store) -> None:
        self._target = target

    @property
    def store(self) -> Store:
        return self._target

    def finish(self) -> None:
        """Everything is in its place."""

    def discard(self) -> None:
        with suppress(PenstockError):
            self._target.delete([entry.path for entry in self._target.list("")])
