"""A checkpoint directory in a local (or locally mounted) folder.

`create` publishes by hard link: a name appears with all its bytes or not at all, and one of many creators wins.
Whatever `create` or a writer's `close` returned from survives a power cut: file and folder were both synced.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import stat
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from penstock.errors import CorruptFile, StorageFailed, storage_failed
from penstock.store.base import AlreadyExists, Entry, FileReader, Store
from penstock.store.paths import TEMP_PREFIX, check_folder, check_path

_log = logging.getLogger(__name__)

LOG_BYTES_MAX = 32 << 20
_COPY_BYTES = 8 << 20
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}

# Folders whose entries up to the store's root this process has synced already; a folder is synced once.
_synced_folders: set[Path] = set()


class LocalStore:
    """A folder of immutable files on this machine."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        # Symbolic links stay as they are: they may lead elsewhere on another machine.
        self._root = Path(root).absolute()

    def __repr__(self) -> str:
        return f"LocalStore({str(self._root)!r})"

    @property
    def url(self) -> str:
        return self._root.as_uri()

    @property
    def root(self) -> Path:
        return self._root

    def create(self, path: str, data: bytes) -> None:
        """As `Store.create`. A `StorageFailed` leaves open whether the name was created: read it to know."""
        full = self._full(path)
        temp = full.parent / f"{TEMP_PREFIX}{uuid.uuid4().hex}"
        with _as_storage_failed(full):
            try:
                with self._open_new(temp) as file:
                    _write_all(file.fileno(), memoryview(data))
                    os.fsync(file.fileno())
                _link(temp, full)
            finally:
                with suppress(OSError):
                    temp.unlink()
            sync_folder(full.parent)

    def read(self, path: str) -> bytes:
        full = self._full(path)
        with _as_storage_failed(full):
            return full.read_bytes()

    def exists(self, path: str) -> bool:
        full = self._full(path)
        with _as_storage_failed(full):
            try:
                return stat.S_ISREG(full.stat().st_mode)
            except (FileNotFoundError, NotADirectoryError):
                return False

    def list(self, prefix: str) -> list[Entry]:
        return sorted(Entry(path, info.st_size) for path, info, temp in self._walk(prefix) if not temp)

    def adopt(self, path: str, origin: Store, *, link: bool = True) -> None:
        full = self._full(path)
        reader = origin.open_reader(path)
        try:
            with _as_storage_failed(full):
                if not full.parent.is_dir():
                    _synced_folders.discard(full.parent)
                self._make_folder(full.parent)
                # Another store's copy on this disk is no file of ours: nobody has compared or synced its bytes.
                there = origin.root / check_path(path) if link and isinstance(origin, LocalStore) else None
                if there is None or not _linked(there, full):
                    self._copy(reader, full)
                sync_folder(full.parent)
        finally:
            reader.close()

    def _copy(self, reader: FileReader, full: Path) -> None:
        temp = full.parent / f"{TEMP_PREFIX}{uuid.uuid4().hex}"
        buffer = memoryview(bytearray(min(reader.size, _COPY_BYTES)))
        try:
            with self._open_new(temp) as file:
                for offset in range(0, reader.size, _COPY_BYTES):
                    piece = buffer[: min(_COPY_BYTES, reader.size - offset)]
                    reader.read_into(offset, piece)
                    _write_all(file.fileno(), piece)
                os.fsync(file.fileno())
            _link(temp, full)
        finally:
            with suppress(OSError):
                temp.unlink()

    def leftovers(self, older_than_s: float) -> tuple[Entry, ...]:
        """As `Store.leftovers`: a crash inside `create` or `adopt` leaves them."""
        before = time.time() - older_than_s
        return tuple(
            Entry(path, info.st_size) for path, info, temp in self._walk("") if temp and info.st_mtime <= before
        )

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            full = self._full(path)
            with _as_storage_failed(full):
                full.unlink(missing_ok=True)

    def append(self, path: str, line: bytes) -> int:
        full = self._full(path)
        try:
            self._make_folder(full.parent)
            descriptor = os.open(full, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                # One write, so that lines of several processes do not mix.
                os.write(descriptor, line if line.endswith(b"\n") else line + b"\n")
                return os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
        except OSError as error:
            _log.warning("a line was not added to %s: %s", full, error)
            return 0

    def open_writer(self, path: str) -> LocalWriter:
        full = self._full(path)
        with _as_storage_failed(full):
            try:
                return LocalWriter(full, self._open_new(full))
            except FileExistsError as error:
                raise AlreadyExists(str(full)) from error

    def open_reader(self, path: str) -> LocalReader:
        full = self._full(path)
        with _as_storage_failed(full):
            return LocalReader(full)

    def local_path(self, path: str) -> str | None:
        return str(self._full(path))

    def drop_copy(self, path: str) -> bool:  # noqa: ARG002 - files are read where they are
        return False

    def put_down(self, data: pa.Buffer) -> pa.Buffer:
        return data

    @property
    def log_bytes_max(self) -> int:
        return LOG_BYTES_MAX

    def _full(self, path: str) -> Path:
        return self._root / check_path(path)

    def _open_new(self, full: Path) -> io.FileIO:
        self._make_folder(full.parent)
        try:
            return io.FileIO(full, "x")
        except FileNotFoundError:
            # Somebody removed the folder after this process had synced it.
            _synced_folders.discard(full.parent)
            self._make_folder(full.parent)
            return io.FileIO(full, "x")

    def _make_folder(self, folder: Path) -> None:
        """Makes `folder` and syncs the path to it, once per process, also when another process has just made it."""
        if folder in _synced_folders:
            return
        existing = folder
        while not existing.exists():
            existing = existing.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(errno.ENOTDIR, "a file is in the way of a folder", str(folder)) from error
        below = folder
        while existing in below.parents or self._root in below.parents:
            below = below.parent
            sync_folder(below)
        _synced_folders.add(folder)

    def _walk(self, prefix: str) -> Iterator[tuple[str, os.stat_result, bool]]:
        pending = [check_folder(prefix)]
        while pending:
            folder = pending.pop()
            full = self._root / folder
            with _as_storage_failed(full), suppress(FileNotFoundError, NotADirectoryError), os.scandir(full) as entries:
                for entry in entries:
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    # A file may be deleted while we look; then it is not there.
                    with suppress(FileNotFoundError):
                        if entry.is_dir():
                            pending.append(path)
                        else:
                            yield path, entry.stat(), entry.name.startswith(TEMP_PREFIX)


class LocalWriter:
    """A new file, written straight to its final name: names are unique per attempt, nobody reads it before `close`."""

    def __init__(self, full: Path, file: io.FileIO) -> None:
        self._full, self._file, self._offset, self._done = full, file, 0, False

    def write(self, data: bytes | memoryview) -> int:
        assert not self._done, f"{self._full} is closed"
        view = memoryview(data).cast("B")
        with _as_storage_failed(self._full):
            _write_all(self._file.fileno(), view)
        self._offset += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self._offset

    def close(self) -> None:
        if self._done:
            return
        with _as_storage_failed(self._full):
            os.fsync(self._file.fileno())
            self._file.close()
            sync_folder(self._full.parent)
        self._done = True

    def abort(self) -> None:
        """Removes the file if it can; after a successful `close` it does nothing.

        Never fails: it runs after another error, which must not be hidden, and garbage collection finds orphans.
        """
        if self._done:
            return
        self._done = True
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._full.unlink()


class LocalReader:
    """Reads at any offset, from any thread."""

    def __init__(self, full: Path) -> None:
        self._full = full
        self._file = io.FileIO(full, "r")
        self._size = os.fstat(self._file.fileno()).st_size

    @property
    def size(self) -> int:
        return self._size

    def read_into(self, offset: int, target: memoryview) -> None:
        filled = 0
        with _as_storage_failed(self._full):
            while filled < target.nbytes:
                got = os.preadv(self._file.fileno(), [target[filled:]], offset + filled)
                if got == 0:
                    raise too_short(str(self._full), offset, target.nbytes, offset + filled)
                filled += got

    def close(self) -> None:
        self._file.close()


def too_short(path: str, offset: int, length: int, size: int) -> CorruptFile:
    """The error of a read beyond the end of a file."""
    return CorruptFile(
        f"{path} ends at byte {size}; bytes {offset} to {offset + length} were wanted",
        cause="the file was truncated after it had been written",
        next_step="restore the file from a copy, or restore an older checkpoint (restore=N)",
        path=path,
    )


@contextmanager
def _as_storage_failed(full: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise storage_failed(str(full), error) from error


def _write_all(descriptor: int, data: memoryview) -> None:
    # A disk that fills up may take a part first and refuse the rest; Linux takes at most 2 GiB at once.
    while data.nbytes:
        data = data[os.write(descriptor, data) :]


def _link(temp: Path, full: Path) -> None:
    try:
        full.hardlink_to(temp)
    except FileExistsError as error:
        # Over NFS an answer may be lost and the repeated request fail on our own link; two links mean we won.
        if temp.stat().st_nlink != 2:
            raise AlreadyExists(str(full)) from error
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        raise StorageFailed(
            f"{full}: {error.strerror}",
            cause="the file system has no hard links, so a checkpoint cannot be published atomically on it",
            next_step="put the checkpoint on a file system with hard links (ext4, xfs, APFS, NFS)",
            path=full,
            errno=error.errno,
        ) from error


def _linked(there: Path, full: Path) -> bool:
    """Makes a second name for a finished file; False where that cannot be, such as on another file system."""
    try:
        full.hardlink_to(there)
    except FileExistsError as error:
        raise AlreadyExists(str(full)) from error
    except OSError as error:
        # EXDEV: another file system. EACCES: a file of another user, which we may read but not link.
        if error.errno in {*_NO_HARD_LINKS, errno.EXDEV, errno.EACCES}:
            return False
        raise
    return True


def sync_folder(folder: Path) -> None:
    """Makes the entries of a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
