"""Files of a table on an object store, by the stores that hold checkpoints: credentials come from the environment."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.sinks.parquet.files import LocalFolder, TableFolder
from penstock.store import LocalStore, Store, open_store


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

    def remove(self, name: str) -> None:
        if self.store.exists(name):
            self.store.delete([name])


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
