"""Durability and create-if-absent on a warehouse that is a local folder.

pypaimon flushes nothing and publishes by rename, which overwrites: acknowledged commits can vanish when two processes
commit at once. Here a file counts only after `fsync`, and a snapshot appears by `os.link`, which fails when it exists.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.errors import CorruptFile, PenstockError, StorageFailed, storage_failed


def as_local(warehouse: str) -> str | None:
    """The absolute path of a folder on this machine; None for a URL of another storage.

    >>> as_local("file:///data/lake"), as_local("s3://bucket/lake")
    ('/data/lake', None)
    """
    parts = urlsplit(warehouse)
    if parts.scheme not in {"", "file"}:
        return None
    path = Path(unquote(parts.path) if parts.scheme else warehouse)
    return os.path.normpath(path.absolute())


def sync(path: Path) -> None:
    """Makes a file's bytes, or a folder's list of names, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_files(paths: Iterable[Path], root: Path) -> None:
    """Makes files durable, and their names: every folder between a file and `root` may be new."""
    folders: set[Path] = set()
    for path in paths:
        sync(path)
        folders.update(folder for folder in path.parents if folder == root or root in folder.parents)
    for folder in sorted(folders, reverse=True):
        sync(folder)


def write_hidden(path: Path, content: str, owner: str = "") -> Path:
    """Writes `content` durably beside `path` under a name that no reader looks at, and tells that name.

    `owner` becomes a part of it, by which `withdraw_hidden` finds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}.{owner}{uuid.uuid4()}.tmp")
    with hidden.open("x", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return hidden


def withdraw_hidden(folder: Path, owner: str) -> None:
    """Removes an owner's unfinished files, so that a process that was about to `link` one of them cannot."""
    for path in folder.glob(f".*.{owner}*.tmp"):
        path.unlink(missing_ok=True)


def link(hidden: Path, path: Path) -> bool:
    """Gives a finished file its name, durably; False when the name is taken, or the file was withdrawn."""
    try:
        path.hardlink_to(hidden)
    except FileNotFoundError:
        return False
    except FileExistsError:
        # A network file system may lose the answer of a link that it made.
        if not path.samefile(hidden):
            return False
    sync(path.parent)
    return True


_locks: dict[str, threading.RLock] = {}


def publishing(table: str) -> threading.RLock:
    """Held while a thread makes a snapshot of this table, so that threads of one process do not waste their work on
    each other. Nothing but speed depends on it: `link` decides between processes."""
    return _locks.setdefault(table, threading.RLock())


def replace(path: Path, content: str) -> None:
    """Swaps in new content for readers, all at once; not durable."""
    hidden = path.with_name(f".{path.name}.{uuid.uuid4()}.tmp")
    hidden.write_text(content, encoding="utf-8")
    hidden.replace(path)


def probe(folder: Path) -> None:
    """Makes and removes a file and a link, so that a warehouse that cannot take them is found before work begins.

    Raises: `StorageFailed`.
    """
    target = folder / f".penstock-{uuid.uuid4()}"
    hidden: Path | None = None
    try:
        hidden = write_hidden(target, "probe")
        target.hardlink_to(hidden)
    except OSError as error:
        raise (unwritable(folder, error) if hidden is None else _no_links(folder, error)) from error
    finally:
        for path in filter(None, (hidden, target)):
            with suppress(OSError):
                path.unlink()


def storage_error(error: BaseException | None, path: str) -> PenstockError | None:
    """What the storage said, if that is the reason of an error; pypaimon wraps it."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if isinstance(error, OSError) and error.errno:
            return storage_failed(str(error.filename or path), error)
        seen.append(error)
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def readable(path: str) -> Iterator[None]:
    """Whatever pypaimon raises on metadata that is damaged, missing or forged becomes an error with a code.

    Raises: `CorruptFile`, `StorageFailed`, `MissingFile`.
    """
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        raise storage_error(error, path) or CorruptFile(
            f"{path}: {type(error).__name__}: {error}",
            cause="a file of the table is damaged or missing, or another engine changed the table meanwhile",
            next_step="read the table with another engine; restore it from a copy if that cannot either",
            path=path,
        ) from error


def unwritable(folder: Path, error: OSError) -> StorageFailed:
    """Why nothing can be written below `folder`."""
    known = storage_failed(str(folder), error)
    if isinstance(known, StorageFailed):
        return known
    return StorageFailed(
        f"{folder}: {error.strerror or error}",
        cause="the warehouse cannot be made there",
        next_step="make the warehouse's folder, or give another path",
        path=folder,
    )


def _no_links(folder: Path, error: OSError) -> StorageFailed:
    return StorageFailed(
        f"{folder}: {error.strerror or error} when making a hard link",
        cause="this file system has no hard links, by which snapshots are published without overwriting others",
        next_step="use a warehouse on a file system that has them (ext4, xfs, apfs, nfs), or an object store",
        path=folder,
    )
