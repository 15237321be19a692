"""A checkpoint directory in an object store: S3, Google Cloud Storage, Azure.

`create` is a put that the store refuses when the name is taken. Each put carries an id of its own, so the store's
refusal of a repeated request, whose first answer was lost, is not mistaken for another driver's file. A list shows
whatever a put returned from: all three stores promise that, and a checkpoint is found by it. Files are written through
a local file; those of state, which are mapped and read again, stay on the disk as copies (`penstock.store.cache`).

The client runs threads of its own, which a fork does not copy: each process opens it once per bucket, and a process
that was forked afterwards gets an error instead of waiting for ever.
"""

from __future__ import annotations

import atexit
import os
import threading
import uuid
from collections.abc import Iterable
from contextlib import closing, suppress
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import obstore
import pyarrow as pa
from obstore import exceptions
from obstore.store import from_url

from penstock.errors import ConfigError, StorageFailed, storage_failed
from penstock.protocol.layout import STATE
from penstock.store.base import AlreadyExists, Entry, Store
from penstock.store.cache import Cache, Spool
from penstock.store.lines import LineLogs
from penstock.store.local import READ_BYTES_MAX, too_large
from penstock.store.objectfiles import PART_BYTES, ObjectReader, ObjectWriter, as_storage_failed, download
from penstock.store.paths import check_folder, check_path, is_path
from penstock.text import redacted

MAPPED_FOLDER = f"{STATE}/"
"""Files with copies on disk: state is read again in every epoch. Segments are read once and in part, so they have
none."""
PUT_BYTES_MAX = 32 << 20
"""Larger files are sent in parts; these cannot be refused by name, so we look before."""
COPY_BYTES_MAX = 5 << 30
"""The most that S3 copies in one request. Larger files are read and written."""
LOG_BYTES_MAX = 1 << 20
"""The longest log, because each flush writes all of it."""
_WRITER = "penstockwriter"
_COPY_BYTES = 8 << 20

_lock = threading.Lock()
_clients: dict[tuple[int, str], Any] = {}
_stores: dict[tuple[int, str], ObjectStore] = {}


def open_object_store(url: str) -> ObjectStore:
    """The process's one handle for `url`, so that connections and copies are shared by all subtasks."""
    parts = urlsplit(url)
    scheme = "s3" if parts.scheme == "s3a" else parts.scheme
    bucket, prefix = f"{scheme}://{parts.netloc}", parts.path.strip("/")
    if not parts.netloc or parts.query or parts.fragment or "//" in prefix:
        raise ConfigError(
            f"checkpoint location {url!r}",
            cause="an object store is named by scheme://bucket/folder, without anything behind it",
            next_step="name a folder in a bucket, such as s3://bucket/checkpoints/totals",
            url=url,
        )
    if redacted(bucket) != bucket:
        raise ConfigError(
            f"checkpoint location {url!r}",
            cause="the URL holds credentials, and URLs are written to events and messages",
            next_step="put them into the environment (docs/guides/object-stores.md), not into the URL",
            url=url,
        )
    place = f"{bucket}/{prefix}" if prefix else bucket
    with _lock:
        store = _stores.get((os.getpid(), place))
        if store is None:
            store = _stores[os.getpid(), place] = ObjectStore(bucket, prefix, _client(bucket), Cache.from_environment())
        return store


def _client(bucket: str) -> Any:
    key = (os.getpid(), bucket)
    _refuse_forked({process for process, _ in _clients}, bucket)
    if key not in _clients:
        settings: dict[str, Any] = {}
        if bucket.startswith("s3:") and "AWS_COPY_IF_NOT_EXISTS" not in os.environ:
            settings["copy_if_not_exists"] = "multipart"  # S3 has no other copy that never overwrites
        try:
            _clients[key] = from_url(bucket, **settings)
        except (exceptions.BaseError, ValueError) as error:
            raise ConfigError(
                f"{bucket}: {str(error).partition(chr(10))[0]}",
                cause="the URL or the settings in the environment do not name an object store",
                next_step="see docs/guides/object-stores.md",
                url=bucket,
            ) from error
    return _clients[key]


def _refuse_forked(used_by: set[int], where: str) -> None:
    if used_by - {os.getpid()}:
        raise ConfigError(
            f"{where} is used by a process that was forked from one which has used an object store before",
            cause="a fork does not copy the threads of the client, so nothing would ever answer",
            next_step="start such processes with the method 'spawn' (multiprocessing.get_context)",
            url=where,
        )


@atexit.register
def _close_logs() -> None:
    for (process, _), store in list(_stores.items()):
        if process == os.getpid():
            store.close_logs()


class ObjectStore:
    """A folder of immutable objects."""

    def __init__(self, bucket: str, prefix: str, client: Any, cache: Cache) -> None:
        self._bucket, self._prefix, self._client, self._cache = bucket, prefix, client, cache
        self._process = os.getpid()
        self._refuses = False
        self._being_written: set[str] = set()
        self._logs = LineLogs(self._put_new, self._overwrite, self._get)

    def __repr__(self) -> str:
        return f"ObjectStore({self.url!r})"

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (open_object_store, (self.url,))

    @property
    def url(self) -> str:
        return f"{self._bucket}/{self._prefix}" if self._prefix else self._bucket

    @property
    def log_bytes_max(self) -> int:
        return LOG_BYTES_MAX

    def create(self, path: str, data: bytes) -> None:
        """As `Store.create`. A `StorageFailed` leaves open whether the name was created: read it to know."""
        self._put_new(check_path(path), bytes(data))
        if not self._refuses:
            self._require_refusal(path, bytes(data))

    def read(self, path: str) -> bytes:
        data = self._logs.content(check_path(path))
        return self._get(path) if data is None else data

    def exists(self, path: str) -> bool:
        with as_storage_failed(self._where(path)):
            try:
                obstore.head(self._client, self._key(path))
            except FileNotFoundError:
                return False
            return True

    def list(self, prefix: str) -> list[Entry]:
        _refuse_forked({self._process}, self._bucket)
        folder = self._key(check_folder(prefix)) if check_folder(prefix) else self._prefix
        start = len(self._prefix) + 1 if self._prefix else 0
        with as_storage_failed(f"{self._bucket}/{folder}"):
            found = obstore.list(self._client, folder or None, chunk_size=1000).collect()
        named = (Entry(meta["path"][start:], meta["size"]) for meta in found)
        entries = sorted(entry for entry in named if is_path(entry.path))
        return _without_folders(entries)

    def delete(self, paths: Iterable[str]) -> None:
        names = [check_path(path) for path in paths]
        if not names:
            return
        for path in names:
            self._logs.forget(path)
            if path.startswith(MAPPED_FOLDER):
                self._cache.drop(self._where(path))
        with as_storage_failed(self._where(names[0])):
            try:
                obstore.delete(self._client, [self._key(path) for path in names])
            except FileNotFoundError:
                # Not every store takes a missing name for deleted; how far it got is not known.
                for path in names:
                    with suppress(FileNotFoundError):
                        obstore.delete(self._client, self._key(path))

    def adopt(self, path: str, origin: Store, *, link: bool = True) -> None:  # noqa: ARG002 - there are no links
        """As `Store.adopt`: inside one bucket the store itself copies."""
        if isinstance(origin, ObjectStore) and self._copy(path, origin):
            return
        with closing(origin.open_reader(path)) as reader:
            writer = self.open_writer(path)
            try:
                for offset in range(0, reader.size, _COPY_BYTES):
                    piece = memoryview(bytearray(min(_COPY_BYTES, reader.size - offset)))
                    reader.read_into(offset, piece)
                    writer.write(piece)
                writer.close()
            finally:
                writer.abort()

    def leftovers(self, older_than_s: float) -> tuple[Entry, ...]:  # noqa: ARG002 - as LocalStore has it
        """Nothing that can be listed: uploads that were cut off end by the bucket's own rule."""
        return ()

    def append(self, path: str, line: bytes) -> int:
        return self._logs.append(check_path(path), line)

    def flush_logs(self) -> None:
        """Writes appended lines now that would be written soon."""
        self._logs.flush()

    def close_logs(self) -> None:
        """Called when the process ends, because no timer will write the lines any more."""
        self._logs.close()

    def open_writer(self, path: str) -> ObjectWriter:
        """As `Store.open_writer`; a name that another process took is noticed by `close`."""
        check_path(path)
        with _lock:
            if path in self._being_written:
                raise AlreadyExists(self._where(path))
            self._being_written.add(path)
        try:
            spool = self._cache.spool()
        except BaseException:
            self._being_written.discard(path)
            raise
        return ObjectWriter(
            spool, self._where(path), partial(self._upload, path), partial(self._being_written.discard, path)
        )

    def open_reader(self, path: str) -> ObjectReader:
        return ObjectReader(self._client, self._key(path), self._where(path))

    def local_path(self, path: str) -> str | None:
        """The copy on this machine, for files of state; it is made if there is none."""
        if not check_path(path).startswith(MAPPED_FOLDER):
            return None
        where = self._where(path)
        copy = self._cache.fetch(where, partial(download, self._client, self._key(path), where))
        return None if copy is None else str(copy)

    def drop_copy(self, path: str) -> bool:
        return self._cache.drop(self._where(path))

    def put_down(self, data: pa.Buffer) -> pa.Buffer:
        return self._cache.put_down(data)

    def _key(self, path: str) -> str:
        _refuse_forked({self._process}, self._bucket)
        return f"{self._prefix}/{check_path(path)}" if self._prefix else check_path(path)

    def _where(self, path: str) -> str:
        return f"{self._bucket}/{self._key(path)}"

    def _get(self, path: str) -> bytes:
        with as_storage_failed(self._where(path)):
            answer = obstore.get(self._client, self._key(path))
            if answer.meta["size"] > READ_BYTES_MAX:
                raise too_large(self._where(path), answer.meta["size"])
            return bytes(answer.bytes())

    def _overwrite(self, path: str, data: bytes) -> None:
        with as_storage_failed(self._where(path)):
            obstore.put(self._client, self._key(path), data, use_multipart=False)

    def _put_new(self, path: str, data: bytes) -> None:
        writer = uuid.uuid4().hex
        with as_storage_failed(self._where(path)):
            try:
                obstore.put(self._client, self._key(path), data, mode="create", attributes={_WRITER: writer})
            except exceptions.AlreadyExistsError:
                self._require_ours(path, writer)

    def _require_refusal(self, path: str, data: bytes) -> None:
        """Tests once that the store refuses to overwrite. One that ignores the condition would let another driver
        overwrite a manifest.

        Raises: `StorageFailed`.
        """
        with as_storage_failed(self._where(path)):
            try:
                obstore.put(self._client, self._key(path), data, mode="create")
            except exceptions.AlreadyExistsError:
                self._refuses = True
                return
        raise StorageFailed(
            f"{self._where(path)}: the object store overwrites a name that is taken, though asked not to",
            cause="it does not know the condition If-None-Match: *, so two drivers could publish the same checkpoint",
            next_step="use another object store, or a newer version of it",
            path=self._where(path),
        )

    def _put_parts(self, path: str, spool: Spool) -> None:
        if self.exists(path):
            raise AlreadyExists(self._where(path))
        writer = uuid.uuid4().hex
        with as_storage_failed(self._where(path)):
            try:
                spool.file.seek(0)
                obstore.put(
                    self._client,
                    self._key(path),
                    cast("Any", spool.file),
                    attributes={_WRITER: writer},
                    use_multipart=True,
                    chunk_size=PART_BYTES,
                    max_concurrency=4,
                )
            except FileNotFoundError:
                # The upload ended with an answer that was lost, and is not there for a second request.
                self._require_ours(path, writer)

    def _require_ours(self, path: str, writer: str) -> None:
        """Checks whose object has the name: the client repeats a request whose answer was lost, and then meets its own
        object.

        Raises: `AlreadyExists`, `StorageFailed`.
        """
        try:
            found = obstore.get(self._client, self._key(path), options={"head": True}).attributes
        except FileNotFoundError as error:
            raise StorageFailed(
                f"{self._where(path)} was neither written nor is it there",
                cause="it was deleted at the same moment, or the object store failed",
                next_step="start again: nothing published was lost",
                path=self._where(path),
            ) from error
        if found.get(_WRITER) != writer:
            raise AlreadyExists(self._where(path))

    def _upload(self, path: str, spool: Spool) -> None:
        if spool.bytes <= PUT_BYTES_MAX:
            self._put_new(path, spool.read())
        else:
            self._put_parts(path, spool)
        if path.startswith(MAPPED_FOLDER):
            spool.keep(self._where(path))
        else:
            spool.discard()

    def _copy(self, path: str, origin: ObjectStore) -> bool:
        """False for another bucket, a file that is too large, and where the store has no copy that never overwrites."""
        if origin._bucket != self._bucket:
            return False
        with as_storage_failed(self._where(path)):
            try:
                obstore.copy(self._client, origin._key(path), self._key(path), overwrite=False)
            except exceptions.AlreadyExistsError as error:
                if not origin.exists(path):
                    raise storage_failed(origin._where(path), FileNotFoundError(2, "no such object")) from error
                raise AlreadyExists(self._where(path)) from error
            except FileNotFoundError as error:
                if not origin.exists(path):
                    raise storage_failed(origin._where(path), FileNotFoundError(2, "no such object")) from error
                raise StorageFailed(
                    f"{self._where(path)}: a copy from {origin._where(path)} ended with an answer that was lost",
                    cause="the object store or the network failed for a moment",
                    next_step="do it again: files that were copied stay",
                    path=self._where(path),
                ) from error
            except exceptions.NotSupportedError:
                return False
            except exceptions.BaseError:
                if obstore.head(self._client, origin._key(path))["size"] <= COPY_BYTES_MAX:
                    raise
                return False
            return True


def _without_folders(entries: list[Entry]) -> list[Entry]:
    """Hadoop's connectors leave an empty object for a folder; it has the name of one, not of a file."""
    folders = {parent for entry in entries for parent in _parents(entry.path)}
    return [entry for entry in entries if entry.path and (entry.bytes or entry.path not in folders)]


def _parents(path: str) -> Iterable[str]:
    place = path.rfind("/")
    while place > 0:
        yield path[:place]
        place = path.rfind("/", 0, place)
