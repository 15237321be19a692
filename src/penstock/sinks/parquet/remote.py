"""Files of a table on an object store, by the stores that hold checkpoints: credentials come from the environment."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.sinks.parquet.files import LocalFolder, TableFolder
from penstock.store import LocalStore, Store, open_store
from penstock.store.base import FileReader


@dataclass(frozen=True, slots=True)
class StoreFolder:
    """Files below a URL. A file is kept in memory until it is complete: at most its target size."""

    store: Store

    def create(self, name: str) -> _Upload:
        return _Upload(self.store, name)

    def finish(self, names: Sequence[str]) -> None:
        """An object is durable once it is there."""

    def exists(self, name: str) -> bool:
        return self.store.exists(name)

    def read(self, name: str) -> bytes | None:
        return self.store.read(name) if self.store.exists(name) else None

    def made_at_ms(self, name: str) -> int | None:
        del name  # stores of checkpoints do not tell
        return None

    def open(self, name: str) -> pa.NativeFile:
        return pa.PythonFile(_Download(self.store.open_reader(name)), mode="r")

    def remove(self, name: str) -> None:
        if self.store.exists(name):
            self.store.delete([name])


class _Download(io.RawIOBase):
    """An object, read piece by piece."""

    def __init__(self, reader: FileReader) -> None:
        super().__init__()
        self._reader, self._at = reader, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._reader.size}[whence]
        self._at = start + offset
        return self._at

    def readinto(self, target: Any) -> int:
        wanted = min(len(target), max(0, self._reader.size - self._at))
        if wanted:
            self._reader.read_into(self._at, memoryview(target)[:wanted])
        self._at += wanted
        return wanted

    def close(self) -> None:
        if not self.closed:
            self._reader.close()
        super().close()


class _Upload(io.BytesIO):
    """Becomes an object when it is closed."""

    def __init__(self, store: Store, name: str) -> None:
        super().__init__()
        self._store, self._name = store, name

    def close(self) -> None:
        if not self.closed:
            self._store.create(self._name, self.getvalue())
        super().close()


def open_folder(url: str) -> TableFolder:
    """The folder at a path or URL."""
    store = open_store(url)
    return LocalFolder(str(store.root)) if isinstance(store, LocalStore) else StoreFolder(store)
