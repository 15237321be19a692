"""A checkpoint directory in a local (or locally mounted) folder.

`create` publishes by hard link: a name appears with all its bytes or not at all, and one of many creators wins.
Whatever `create` or a writer's `close` returned from survives a power cut: file and folder were both synced.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from penstock.errors import CorruptFile, StorageFailed, UnsafeName, storage_failed
from penstock.store import beneath
from penstock.store.base import AlreadyExists, Entry, FileReader, Store
from penstock.store.paths import TEMP_PREFIX, check_folder, check_path, is_a_link

_log = logging.getLogger(__name__)

LOG_BYTES_MAX = 32 << 20
READ_BYTES_MAX = 256 << 20
"""The largest file that is read as a whole: manifests, lists, pieces of the history."""
_COPY_BYTES = 8 << 20
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}

# Folders whose entries up to the store's root this process has synced already; a folder is synced once.
_synced_folders: set[Path] = set()


class LocalStore:
    """A folder of immutable files on this machine. Links below it are not followed, see `penstock.store.beneath`."""

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
        temp = _temp_beside(path)
        with self._failing(path):
            try:
                with self._open_new(temp) as file:
                    _write_all(file.fileno(), memoryview(data))
                    os.fsync(file.fileno())
                self._link(temp, path)
            finally:
                with suppress(OSError):
                    beneath.unlink(self._root, temp)
            self._sync_parent(path)

    def read(self, path: str) -> bytes:
        with self._failing(path), io.FileIO(beneath.open_file(self._root, check_path(path))) as file:
            size = os.fstat(file.fileno()).st_size
            if size > READ_BYTES_MAX:
                raise too_large(str(self._root / path), size)
            return file.readall()

    def exists(self, path: str) -> bool:
        with self._failing(path):
            return beneath.is_file(self._root, check_path(path))

    def list(self, prefix: str) -> list[Entry]:
        return sorted(Entry(found.path, found.info.st_size) for found in self._walk(prefix) if not _is_temp(found))

    def adopt(self, path: str, origin: Store, *, link: bool = True) -> None:
        check_path(path)
        reader = origin.open_reader(path)
        try:
            with self._failing(path):
                folder = _folder_of(path)
                if not (self._root / folder).is_dir():
                    _synced_folders.discard(self._root / folder)
                self._make_folder(folder)
                # Another store's copy on this disk is not enough: its bytes were not verified or synced.
                if not (link and isinstance(origin, LocalStore) and self._linked(path, origin)):
                    self._copy(reader, path)
                self._sync_parent(path)
        finally:
            reader.close()

    def _copy(self, reader: FileReader, path: str) -> None:
        temp = _temp_beside(path)
        buffer = memoryview(bytearray(min(reader.size, _COPY_BYTES)))
        try:
            with self._open_new(temp) as file:
                for offset in range(0, reader.size, _COPY_BYTES):
                    piece = buffer[: min(_COPY_BYTES, reader.size - offset)]
                    reader.read_into(offset, piece)
                    _write_all(file.fileno(), piece)
                os.fsync(file.fileno())
            self._link(temp, path)
        finally:
            with suppress(OSError):
                beneath.unlink(self._root, temp)

    def leftovers(self, older_than_s: float) -> tuple[Entry, ...]:
        """As `Store.leftovers`: a crash inside `create` or `adopt` leaves them."""
        before = time.time() - older_than_s
        return tuple(
            Entry(found.path, found.info.st_size)
            for found in self._walk("")
            if _is_temp(found) and found.info.st_mtime <= before
        )

    def delete(self, paths: Iterable[str]) -> None:
        """As `Store.delete`; of a link only the link itself goes."""
        for path in paths:
            check_path(path)
            with self._failing(path), suppress(NotADirectoryError):
                beneath.unlink(self._root, path)

    def append(self, path: str, line: bytes) -> int:
        check_path(path)
        try:
            self._make_folder(_folder_of(path))
            descriptor = beneath.open_file(self._root, path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            try:
                # One write, so that lines of several processes do not mix.
                os.write(descriptor, line if line.endswith(b"\n") else line + b"\n")
                return os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
        except OSError as error:
            _log.warning("a line was not added to %s: %s", self._root / path, error)
            return 0

    def open_writer(self, path: str) -> LocalWriter:
        with self._failing(path):
            try:
                return LocalWriter(self._root, path, self._open_new(check_path(path)))
            except FileExistsError as error:
                raise AlreadyExists(str(self._root / path)) from error

    def open_reader(self, path: str) -> LocalReader:
        with self._failing(path):
            return LocalReader(self._root / path, beneath.open_file(self._root, check_path(path)))

    def local_path(self, path: str) -> str | None:
        """Raises: `UnsafeName` where a link is in the way."""
        with self._failing(path):
            beneath.is_file(self._root, check_path(path))
        return str(self._root / path)

    def drop_copy(self, path: str) -> bool:  # noqa: ARG002 - files are read where they are
        return False

    def put_down(self, data: pa.Buffer) -> pa.Buffer:
        return data

    @property
    def log_bytes_max(self) -> int:
        return LOG_BYTES_MAX

    def require_plain(self, folder: str) -> None:
        """For a folder that another program will follow links in. Raises: `UnsafeName` if there is any."""
        with self._failing(folder):
            found = beneath.foreign(self._root, check_path(folder))
        if found is not None:
            raise is_a_link(found, str(self._root))

    @contextmanager
    def _failing(self, path: str) -> Iterator[None]:
        with _as_storage_failed(self._root / path):
            yield

    def _open_new(self, path: str) -> io.FileIO:
        folder = _folder_of(path)
        self._make_folder(folder)
        try:
            return self._exclusive(path)
        except FileNotFoundError:
            # The folder was removed after this process had synced it.
            _synced_folders.discard(self._root / folder)
            self._make_folder(folder)
            return self._exclusive(path)

    def _exclusive(self, path: str) -> io.FileIO:
        """An exclusive create never goes through a link of that name."""
        with beneath.parent(self._root, path) as (folder, name):
            return io.FileIO(name, "x", opener=lambda name, flags: os.open(name, flags, 0o666, dir_fd=folder))

    def _link(self, temp: str, path: str) -> None:
        try:
            beneath.link(self._root, path, self._root, temp)
        except FileExistsError as error:
            # Over NFS an answer may be lost and the repeated request fail on our own link; two links mean we won.
            if (self._root / temp).lstat().st_nlink != 2:
                raise AlreadyExists(str(self._root / path)) from error
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            raise StorageFailed(
                f"{self._root / path}: {error.strerror}",
                cause="the file system has no hard links, so a checkpoint cannot be published atomically on it",
                next_step="put the checkpoint on a file system with hard links (ext4, xfs, APFS, NFS)",
                path=self._root / path,
                errno=error.errno,
            ) from error

    def _linked(self, path: str, origin: LocalStore) -> bool:
        """Makes a second name for a finished file; False where that cannot be, such as on another file system."""
        try:
            beneath.link(self._root, path, origin.root, path)
        except FileExistsError as error:
            raise AlreadyExists(str(self._root / path)) from error
        except OSError as error:
            # EXDEV: another file system. EACCES: a file of another user, which we may read but not link.
            if error.errno in {*_NO_HARD_LINKS, errno.EXDEV, errno.EACCES}:
                return False
            raise
        return True

    def _sync_parent(self, path: str) -> None:
        beneath.sync(self._root, _folder_of(path))

    def _make_folder(self, folder: str) -> None:
        """Makes `folder` and syncs the path to it, once per process, also when another process has just made it."""
        if self._root / folder in _synced_folders:
            return
        existing = self._root
        while not existing.exists():
            existing = existing.parent
        try:
            self._root.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(errno.ENOTDIR, "a file is in the way of a folder", str(self._root)) from error
        beneath.make_folder(self._root, folder)
        below = folder
        while below:
            below = _folder_of(below)
            beneath.sync(self._root, below)
        above = self._root
        while existing in above.parents:
            above = above.parent
            sync_folder(above)
        _synced_folders.add(self._root / folder)

    def _walk(self, prefix: str) -> Iterator[beneath.FoundEntry]:
        folder = check_folder(prefix)
        with self._failing(folder):
            yield from beneath.walk(self._root, folder)


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def _temp_beside(path: str) -> str:
    folder = _folder_of(check_path(path))
    name = f"{TEMP_PREFIX}{uuid.uuid4().hex}"
    return f"{folder}/{name}" if folder else name


def _is_temp(found: beneath.FoundEntry) -> bool:
    return found.name.startswith(TEMP_PREFIX)


class LocalWriter:
    """A new file, written straight to its final name. Names are unique per attempt, and no reader knows the name before
    `close`."""

    def __init__(self, root: Path, path: str, file: io.FileIO) -> None:
        self._root, self._path, self._full = root, path, root / path
        self._file, self._offset, self._done = file, 0, False

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
            beneath.sync(self._root, _folder_of(self._path))
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
        with suppress(OSError, UnsafeName):
            beneath.unlink(self._root, self._path)


class LocalReader:
    """Reads at any offset, from any thread."""

    def __init__(self, full: Path, descriptor: int) -> None:
        self._full = full
        self._file = io.FileIO(descriptor, "r")
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


def too_large(path: str, size: int) -> CorruptFile:
    """The error of a file that must fit into memory and does not."""
    return CorruptFile(
        f"{path} has {size} bytes; files of its kind are read as a whole, up to {READ_BYTES_MAX} bytes",
        cause="the file is not what its name says",
        next_step="restore it from a copy, or restore an older checkpoint (restore=N)",
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


def sync_folder(folder: Path) -> None:
    """Makes the entries of a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
