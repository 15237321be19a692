"""Files of an object store: read in ranges, written through a local file, errors in our own words."""

from __future__ import annotations

import io
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import obstore
from obstore import exceptions

from penstock.errors import StorageFailed, storage_failed
from penstock.store.base import AlreadyExists
from penstock.store.cache import Spool
from penstock.store.local import too_short

FIRST_BYTES = 256 << 10
"""Read when a file is opened: its size comes with them, a small file is whole, a large one has its schema in them."""
AHEAD_BYTES = 4 << 20
"""How much a sequential reader reads at once; a request costs as much time as a megabyte."""
PART_BYTES = 16 << 20
"""The part size of downloads and uploads: small enough to pass before a request times out."""
_NO_RANGE = re.compile(r"\b416\b|Invalid range")
_NO_BUCKET = "NoSuchBucket"
_MAKE_BUCKET = ("the bucket does not exist", "make it, or correct the URL")


@contextmanager
def as_storage_failed(where: str) -> Iterator[None]:
    """Raises: `MissingFile`, `StorageFailed`."""
    try:
        yield
    except FileNotFoundError as error:
        if _NO_BUCKET in str(error):
            raise _failed(where, error, *_MAKE_BUCKET) from error
        raise storage_failed(where, FileNotFoundError(2, "no such object")) from error
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        cause = "the credentials in the environment are missing, expired, or do not allow this"
        step = "set them for the driver and for the executors (docs/guides/object-stores.md)"
        raise _failed(where, error, cause, step) from error
    except exceptions.BaseError as error:
        if _NO_BUCKET in str(error):
            raise _failed(where, error, *_MAKE_BUCKET) from error
        cause = "the object store cannot be reached, or refused the operation after several tries"
        step = "check endpoint, region and network, then start again: nothing published was lost"
        raise _failed(where, error, cause, step) from error
    except OSError as error:
        raise storage_failed(where, error) from error


def _failed(where: str, error: Exception, cause: str, next_step: str) -> StorageFailed:
    seen = str(error).partition("\n")[0]
    return StorageFailed(f"{where}: {seen}", cause=cause, next_step=next_step, path=where)


class ObjectReader:
    """Reads at any offset, from any thread; keeps what came with the last request and was not asked for yet."""

    def __init__(self, client: Any, key: str, where: str) -> None:
        self._client, self._key, self._where = client, key, where
        self._lock = threading.Lock()
        self._begin, self._block = 0, memoryview(b"")
        self._size, data = get_first(client, key, where, FIRST_BYTES)
        self._block = memoryview(data)
        self._next = -1

    @property
    def size(self) -> int:
        return self._size

    def read_into(self, offset: int, target: memoryview) -> None:
        length = target.nbytes
        if offset + length > self._size:
            raise too_short(self._where, offset, length, self._size)
        if not length:
            return
        with self._lock:
            if not (self._begin <= offset and offset + length <= self._begin + self._block.nbytes):
                self._load(offset, length)
            start = offset - self._begin
            target.cast("B")[:] = self._block[start : start + length]
            self._next = offset + length
            if self._begin and self._next == self._begin + self._block.nbytes:
                self._block = memoryview(b"")  # read to its end: many files are open at once

    def close(self) -> None:
        self._block = memoryview(b"")

    def _load(self, offset: int, length: int) -> None:
        end = min(self._size, offset + (max(length, AHEAD_BYTES) if offset == self._next else length))
        self._begin, self._block = offset, get_range(self._client, self._key, self._where, offset, end)


def get_first(client: Any, key: str, where: str, length: int) -> tuple[int, memoryview]:
    """The size of an object, and its first bytes, in one request."""
    with as_storage_failed(where):
        try:
            answer = obstore.get(client, key, options={"range": (0, length)})
            return answer.meta["size"], memoryview(answer.bytes()).cast("B")
        except exceptions.GenericError as error:
            # An empty object has no range at all.
            if not _NO_RANGE.search(str(error)) or obstore.head(client, key)["size"]:
                raise
            return 0, memoryview(b"")


def get_range(client: Any, key: str, where: str, begin: int, end: int) -> memoryview:
    """Raises: `CorruptFile` when the object ends before."""
    with as_storage_failed(where):
        data = memoryview(obstore.get_range(client, key, start=begin, end=end)).cast("B")
    if data.nbytes != end - begin:
        raise too_short(where, begin, end - begin, begin + data.nbytes)
    return data


def download(client: Any, key: str, where: str, file: io.FileIO, bytes_max: int) -> bool:
    """The whole object into a file; False if it is larger than `bytes_max`."""
    size, data = get_first(client, key, where, PART_BYTES)
    if size > bytes_max:
        return False
    offset = 0
    while True:
        offset += data.nbytes
        while data.nbytes:
            data = data[os.write(file.fileno(), data) :]
        if offset >= size:
            return True
        data = get_range(client, key, where, offset, min(size, offset + PART_BYTES))


class ObjectWriter:
    """A new file; it is written to a local one, and becomes an object with `close`."""

    def __init__(self, spool: Spool, where: str, finish: Callable[[Spool], None], end: Callable[[], None]) -> None:
        self._spool, self._where, self._finish, self._end = spool, where, finish, end
        self._done = False

    def write(self, data: bytes | memoryview) -> int:
        assert not self._done, f"{self._where} is closed"
        view = memoryview(data).cast("B")
        self._spool.write(view)
        return view.nbytes

    def tell(self) -> int:
        return self._spool.bytes

    def close(self) -> None:
        """Raises: `AlreadyExists`; `StorageFailed` leaves open whether there is such an object now."""
        if self._done:
            return
        try:
            self._finish(self._spool)
        except AlreadyExists:
            self.abort()
            raise
        self._done = True
        self._end()

    def abort(self) -> None:
        """Forgets the file; after a successful `close` it does nothing. Never fails."""
        if self._done:
            return
        self._done = True
        self._spool.discard()
        self._end()
