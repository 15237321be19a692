"""A checkpoint directory in this process's memory, for tests and the simulator; the semantics are `LocalStore`'s."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable
from weakref import WeakValueDictionary

import pyarrow as pa

from penstock.errors import storage_failed
from penstock.store.base import AlreadyExists, Entry, Store
from penstock.store.local import LOG_BYTES_MAX, too_short
from penstock.store.paths import check_folder, check_path


class _Content:
    """The files of one name, shared by all stores of that name."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.folders: dict[str, dict[str, bytes]] = {}
        """By the first part of their paths: a listing need not look at the files of other folders."""
        self.being_written: set[str] = set()

    def beside(self, path: str) -> dict[str, bytes]:
        """The files whose paths begin as this one does."""
        return self.folders.setdefault(path.partition("/")[0], {})

    def find(self, path: str) -> bytes | None:
        return self.folders.get(path.partition("/")[0], {}).get(path)


_contents: WeakValueDictionary[str, _Content] = WeakValueDictionary()
_contents_lock = threading.Lock()


class MemoryStore:
    """A handle to the files of `name`; without a name they are this store's own. Files live as long as a handle."""

    def __init__(self, name: str | None = None) -> None:
        self._name = name or uuid.uuid4().hex
        with _contents_lock:
            content = _contents.get(self._name)
            if content is None:
                content = _contents[self._name] = _Content()
        self._content = content

    def __repr__(self) -> str:
        return f"MemoryStore({self._name!r})"

    def __reduce__(self) -> tuple[type[MemoryStore], tuple[str]]:
        return (MemoryStore, (self._name,))

    @property
    def url(self) -> str:
        return f"memory://{self._name}"

    def create(self, path: str, data: bytes) -> None:
        self._put_new(check_path(path), bytes(data))

    def read(self, path: str) -> bytes:
        data = self._content.find(check_path(path))
        if data is None:
            raise storage_failed(f"{self.url}/{path}", FileNotFoundError(2, "no such file"))
        return data

    def exists(self, path: str) -> bool:
        return self._content.find(check_path(path)) is not None

    def list(self, prefix: str) -> list[Entry]:
        folder = check_folder(prefix)
        start = f"{folder}/" if folder else ""
        with self._content.lock:
            near = [self._content.beside(start)] if folder else self._content.folders.values()
            return sorted(Entry(p, len(data)) for files in near for p, data in files.items() if p.startswith(start))

    def adopt(self, path: str, origin: Store, *, link: bool = True) -> None:  # noqa: ARG002 - bytes never change
        self._put_new(check_path(path), origin.read(path))

    def leftovers(self, older_than_s: float) -> tuple[Entry, ...]:  # noqa: ARG002 - as LocalStore has it
        """Nothing: `create` needs no temporary files here."""
        return ()

    def delete(self, paths: Iterable[str]) -> None:
        with self._content.lock:
            for path in paths:
                self._content.beside(check_path(path)).pop(path, None)

    def append(self, path: str, line: bytes) -> int:
        with self._content.lock:
            files = self._content.beside(check_path(path))
            files[path] = files.get(path, b"") + (line if line.endswith(b"\n") else line + b"\n")
            return len(files[path])

    def open_writer(self, path: str) -> MemoryWriter:
        check_path(path)
        with self._content.lock:
            if path in self._content.beside(path) or path in self._content.being_written:
                raise AlreadyExists(path)
            self._content.being_written.add(path)
        return MemoryWriter(self._content, path)

    def open_reader(self, path: str) -> MemoryReader:
        return MemoryReader(f"{self.url}/{path}", self.read(path))

    def local_path(self, path: str) -> str | None:  # noqa: ARG002 - memory has no paths
        return None

    def drop_copy(self, path: str) -> bool:  # noqa: ARG002 - nor copies
        return False

    def put_down(self, data: pa.Buffer) -> pa.Buffer:
        return data

    @property
    def log_bytes_max(self) -> int:
        return LOG_BYTES_MAX

    def _put_new(self, path: str, data: bytes) -> None:
        with self._content.lock:
            files = self._content.beside(path)
            if path in files or path in self._content.being_written:
                raise AlreadyExists(path)
            files[path] = data


class MemoryWriter:
    """A new file; its name is taken at once, its bytes appear with `close`."""

    def __init__(self, content: _Content, path: str) -> None:
        self._content, self._path, self._data, self._done = content, path, bytearray(), False

    def write(self, data: bytes | memoryview) -> int:
        assert not self._done, f"{self._path} is closed"
        view = memoryview(data).cast("B")
        self._data += view
        return view.nbytes

    def tell(self) -> int:
        return len(self._data)

    def close(self) -> None:
        if self._done:
            return
        self._done = True
        with self._content.lock:
            self._content.being_written.discard(self._path)
            self._content.beside(self._path)[self._path] = bytes(self._data)

    def abort(self) -> None:
        """Forgets the file; after `close` it does nothing."""
        if self._done:
            return
        self._done = True
        with self._content.lock:
            self._content.being_written.discard(self._path)


class MemoryReader:
    """Reads at any offset, from any thread."""

    def __init__(self, name: str, data: bytes | memoryview) -> None:
        self._name, self._data = name, data

    @property
    def size(self) -> int:
        return len(self._data)

    def read_into(self, offset: int, target: memoryview) -> None:
        piece = memoryview(self._data)[offset : offset + target.nbytes]
        if piece.nbytes < target.nbytes:
            raise too_short(self._name, offset, target.nbytes, len(self._data))
        target.cast("B")[:] = piece

    def close(self) -> None:
        self._data = b""
