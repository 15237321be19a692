"""Files below a folder of unknown origin: each step of a path goes by a descriptor, and no link is followed.

The folder itself, and what is above it, was chosen by the user and may be reached through links. Below it a link, a
device or a pipe is a foreign thing: it is never opened, listed or walked into, and `unlink` removes it and not what it
leads to. Descriptors, not checks before use: swapping a folder for a link meanwhile changes nothing.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from penstock.store.paths import check_path, is_a_link, is_path

_WALK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# Without blocking: opening a pipe in the place of a file would wait for ever.
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NOT_FOLLOWED = {errno.ELOOP, errno.ENOTDIR}


class FoundEntry(NamedTuple):
    """An entry of a folder."""

    path: str
    name: str
    info: os.stat_result


@contextmanager
def folder(root: Path, path: str, *, readable: bool = False) -> Iterator[int]:
    """A descriptor of a folder below `root`, ``""`` for itself; a `readable` one can be listed and synced.

    Raises: `OSError`; `UnsafeName` where a link is in the way.
    """
    last = _READ if readable else _WALK
    names = path.split("/") if path else []
    descriptor = os.open(root, _WALK if names else last)
    try:
        for number, name in enumerate(names, 1):
            deeper = _enter(descriptor, name, last if number == len(names) else _WALK, root, "/".join(names[:number]))
            os.close(descriptor)
            descriptor = deeper
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def parent(root: Path, path: str) -> Iterator[tuple[int, str]]:
    """The folder of a file as a descriptor, and the file's own name in it. Raises: as `folder`."""
    above, _, name = check_path(path).rpartition("/")
    with folder(root, above) as descriptor:
        yield descriptor, name


def open_file(root: Path, path: str, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file below `root`. Raises: `OSError`; `UnsafeName` for a link, a device, a pipe."""
    with parent(root, path) as (above, name):
        try:
            descriptor = os.open(name, flags | _FILE, 0o666, dir_fd=above)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENXIO}:
                raise is_a_link(path, str(root)) from error
            raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "a folder is in the place of a file", str(root / path))
    raise is_a_link(path, str(root))


def is_plain(mode: int) -> bool:
    """Whether it is a file or a folder, not a link, a device or a pipe."""
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def is_file(root: Path, path: str) -> bool:
    """Whether there is a regular file. Raises: `OSError`; `UnsafeName` for a link, a device, a pipe."""
    try:
        with parent(root, path) as (above, name):
            mode = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not is_plain(mode):
        raise is_a_link(path, str(root))
    return stat.S_ISREG(mode)


def unlink(root: Path, path: str) -> int | None:
    """Removes a name, whatever it is but a folder, and tells how many bytes it had; None: it was not there."""
    try:
        with parent(root, path) as (above, name):
            size = os.stat(name, dir_fd=above, follow_symlinks=False).st_size
            os.unlink(name, dir_fd=above)
    except FileNotFoundError:
        return None
    return size


def link(root: Path, path: str, origin: Path, there: str) -> None:
    """A second name for a file below `origin`. Raises: `OSError`, `UnsafeName`."""
    with parent(origin, there) as (from_folder, old), parent(root, path) as (to_folder, new):
        os.link(old, new, src_dir_fd=from_folder, dst_dir_fd=to_folder, follow_symlinks=False)


def make_folder(root: Path, path: str) -> None:
    """Makes the folders of `path` below `root`. Raises: `OSError`, `UnsafeName`."""
    names = path.split("/") if path else []
    for number, name in enumerate(names):
        with folder(root, "/".join(names[:number])) as above, suppress(FileExistsError):
            os.mkdir(name, dir_fd=above)
    with folder(root, path):
        pass


def sync(root: Path, path: str) -> None:
    """Makes the entries of a folder survive a power cut."""
    with folder(root, path, readable=True) as descriptor:
        os.fsync(descriptor)


def walk(root: Path, path: str) -> Iterator[FoundEntry]:
    """Regular files below a folder, at any depth, in no order; none if it is not there. Foreign things, and names that
    no file of ours can have, are left out.

    Raises: `OSError`; `UnsafeName` where the folder itself, or one on the way to it, is a link.
    """
    pending = [path]
    while pending:
        here = pending.pop()
        with (
            suppress(FileNotFoundError, NotADirectoryError),
            folder(root, here, readable=True) as descriptor,
            os.scandir(descriptor) as entries,
        ):
            for entry in entries:
                below = f"{here}/{entry.name}" if here else entry.name
                if entry.is_dir(follow_symlinks=False):
                    pending.append(below)
                elif entry.is_file(follow_symlinks=False) and is_path(below):
                    # A file may be deleted while we look; then it is not there.
                    with suppress(FileNotFoundError):
                        yield FoundEntry(below, entry.name, entry.stat(follow_symlinks=False))


def foreign(root: Path, path: str) -> str | None:
    """The first link, device or pipe below a folder, or the folder itself; None if there is none."""
    pending = [path]
    while pending:
        here = pending.pop()
        with (
            suppress(FileNotFoundError),
            folder(root, here, readable=True) as descriptor,
            os.scandir(descriptor) as entries,
        ):
            for entry in entries:
                below = f"{here}/{entry.name}" if here else entry.name
                if entry.is_dir(follow_symlinks=False):
                    pending.append(below)
                elif not entry.is_file(follow_symlinks=False):
                    return below
    return None


def _enter(above: int, name: str, flags: int, root: Path, path: str) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=above)
    except OSError as error:
        if error.errno in _NOT_FOLLOWED:
            with suppress(FileNotFoundError):
                mode = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
                if not is_plain(mode):
                    raise is_a_link(path, str(root)) from error
        raise
