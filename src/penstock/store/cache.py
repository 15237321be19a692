"""Copies of immutable objects on this machine's disk, shared by all processes of a user.

A copy appears under its name whole, by rename, so a process that is killed leaves a temporary file and nothing else.
The least recently used copies go first; a process that has mapped one keeps its bytes. A reader verifies a copy by the
checksum in the manifest, and drops and fetches it again if it differs.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import logging
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from penstock.errors import StorageFailed, storage_failed
from penstock.units import parse_bytes

_log = logging.getLogger(__name__)

FOLDER_VARIABLE = "PENSTOCK_CACHE"
BYTES_VARIABLE = "PENSTOCK_CACHE_BYTES"
BYTES_MAX = 10_000_000_000
TEMP_S_MAX = 86_400.0
"""A temporary file that did not change for this long was left by a process that was killed."""
_LOOKS = 64
"""A process looks at the whole folder again when it has added this part of the bound."""
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}


class _Copy(NamedTuple):
    used_at_ns: int
    bytes: int
    path: Path


class Cache:
    """A folder of copies with a bound on their bytes; 0 keeps none."""

    def __init__(self, folder: Path, bytes_max: int = BYTES_MAX) -> None:
        self._folder, self._bytes_max = folder, bytes_max
        self._is_own = False
        self._added_bytes = bytes_max  # the first copy looks at what others left

    @classmethod
    def from_environment(cls) -> Cache:
        """Raises: `ConfigError` for a size that cannot be understood."""
        default = Path(tempfile.gettempdir()) / f"penstock-cache-{os.geteuid()}"
        folder = Path(os.environ.get(FOLDER_VARIABLE) or default).expanduser().absolute()
        written = os.environ.get(BYTES_VARIABLE)
        number: object = int(written) if written and written.isdigit() else written
        return cls(folder, parse_bytes(number, BYTES_VARIABLE) if written else BYTES_MAX)

    def find(self, name: str) -> Path | None:
        """Where the copy is, if there is one; it counts as used now. The time of its last change stays as it was."""
        path = self._path(name)
        self._require_own()
        try:
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
        except OSError:
            return None
        return path

    def fetch(self, name: str, download: Callable[[io.FileIO, int], bool]) -> Path | None:
        """The copy, made by `download` if there is none; of many processes one downloads. None: it cannot be kept.

        `download` fills a file, and gives up with False if that would take more bytes than it is told.
        """
        if not self._bytes_max:
            return None
        try:
            found = self.find(name)
            if found is not None:
                return found
            with self._locked(name):
                return self.find(name) or self._download(name, download)
        except (OSError, StorageFailed) as error:
            if isinstance(error, StorageFailed) and "cache" not in error.fields:
                raise
            _log.warning("no copy is kept in %s: %s", self._folder, error)
            return None

    def spool(self) -> Spool:
        """A new file to write to; `keep` makes a copy of it. Raises: `StorageFailed`."""
        for last_try in (False, True):
            try:
                path = self._subfolder("temp") / uuid.uuid4().hex
                return Spool(path, io.FileIO(path, "x+"), self)
            except OSError as error:
                if last_try or error.errno not in _NO_ROOM:
                    raise storage_failed(str(self._folder), error) from error
                self.make_room()
        raise AssertionError("the last try returns or raises")

    def put_down(self, data: pa.Buffer) -> pa.Buffer:
        """The bytes in a mapped file without a name, so that the system can free their memory. On a full disk they stay
        in memory."""
        try:
            spool = self.spool()
            try:
                spool.write(memoryview(data))
                with pa.memory_map(str(spool.path)) as file:
                    return file.read_buffer()
            finally:
                spool.discard()
        except (OSError, StorageFailed) as error:
            _log.warning("state stays in memory, %s cannot take it: %s", self._folder, error)
            return data

    def keep(self, name: str, temp: Path, size: int) -> Path | None:
        """Makes a finished temporary file the copy, in place of an older one."""
        try:
            if size > self._bytes_max:
                temp.unlink()
                return None
            path = self._path(name)
            self._subfolder(path.parent.name)
            temp.rename(path)
        except OSError as error:
            _log.warning("no copy is kept in %s: %s", self._folder, error)
            with suppress(OSError):
                temp.unlink()
            return None
        self._added_bytes += size
        if self._added_bytes * _LOOKS >= self._bytes_max:
            self._added_bytes = 0
            self._trim(int(self._bytes_max * 0.9), spared=path)
        return path

    def drop(self, name: str) -> bool:
        """Forgets a copy; says whether there was one."""
        try:
            self._path(name).unlink()
        except OSError:
            return False
        return True

    def make_room(self) -> None:
        """Removes all copies, because the disk is full."""
        self._trim(0)

    def _download(self, name: str, download: Callable[[io.FileIO, int], bool]) -> Path | None:
        for last_try in (False, True):
            temp = self._subfolder("temp") / uuid.uuid4().hex
            try:
                with io.FileIO(temp, "x+") as file:
                    whole = download(file, self._bytes_max)
                    size = os.fstat(file.fileno()).st_size
                if whole:
                    return self.keep(name, temp, size)
                temp.unlink()
                return None
            except BaseException as error:
                with suppress(OSError):
                    temp.unlink()
                if last_try or not isinstance(error, OSError) or error.errno not in _NO_ROOM:
                    raise
                self.make_room()
        raise AssertionError("the last try returns or raises")

    def _path(self, name: str) -> Path:
        digest = hashlib.sha256(name.encode()).hexdigest()
        return self._folder / digest[:2] / digest

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """One process at a time for a name. The kernel lets go of it when a process dies."""
        lock = self._subfolder("locks") / self._path(name).parent.name
        with lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _subfolder(self, name: str) -> Path:
        folder = self._folder / name
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._require_own()
        folder.mkdir(exist_ok=True, mode=0o700)
        return folder

    def _require_own(self) -> None:
        """Refuses a folder of another user: the default one lies where every user may make folders and links."""
        if self._is_own or not self._folder.exists():
            return
        self._is_own = self._folder.stat().st_uid == os.geteuid() and self._folder.lstat().st_uid in {os.geteuid(), 0}
        if not self._is_own:
            raise StorageFailed(
                f"the cache folder {self._folder} belongs to another user",
                cause="another user has made it",
                next_step=f"name another folder in {FOLDER_VARIABLE}",
                cache=self._folder,
            )

    def _trim(self, bytes_max: int, spared: Path | None = None) -> None:
        """Removes the copies used least recently; also temporary files that processes left behind."""
        copies = sorted(self._copies())
        total = sum(copy.bytes for copy in copies)
        for copy in copies:
            if total <= bytes_max:
                break
            if copy.path != spared:
                with suppress(OSError):
                    copy.path.unlink()
                total -= copy.bytes
        before = time.time() - TEMP_S_MAX
        with suppress(OSError):
            for temp in (self._folder / "temp").iterdir():
                with suppress(OSError):
                    if temp.stat().st_mtime < before:
                        temp.unlink()

    def _copies(self) -> Iterator[_Copy]:
        for path in self._folder.glob("[0-9a-f][0-9a-f]/*"):
            with suppress(OSError):  # another process was faster
                info = path.stat()
                yield _Copy(info.st_atime_ns, info.st_size, path)


class Spool:
    """A temporary file on the way to the object store."""

    def __init__(self, path: Path, file: io.FileIO, cache: Cache) -> None:
        self.path, self.file, self._cache = path, file, cache
        self.bytes = 0

    def write(self, data: memoryview) -> None:
        """Raises: `StorageFailed` when the disk is full though all copies were given up."""
        made_room = False
        while data.nbytes:
            try:
                written = os.write(self.file.fileno(), data)
            except OSError as error:
                if made_room or error.errno not in _NO_ROOM:
                    raise storage_failed(str(self.path), error) from error
                self._cache.make_room()
                made_room = True
            else:
                self.bytes += written
                data = data[written:]

    def read(self) -> bytes:
        try:
            self.file.seek(0)
            return self.file.readall()
        except OSError as error:
            raise storage_failed(str(self.path), error) from error

    def keep(self, name: str) -> None:
        """It becomes the copy of `name`."""
        self.file.close()
        self._cache.keep(name, self.path, self.bytes)

    def discard(self) -> None:
        """Never fails."""
        with suppress(OSError):
            self.file.close()
        with suppress(OSError):
            self.path.unlink()
