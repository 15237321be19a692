"""The checkpoint directory: create-if-absent, immutable files, nothing else."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.errors import ConfigError
from penstock.store.base import AlreadyExists, Entry, FileReader, FileWriter, Store
from penstock.store.local import LocalStore
from penstock.store.memory import MemoryStore

__all__ = [
    "AlreadyExists",
    "Entry",
    "FileReader",
    "FileWriter",
    "LocalStore",
    "MemoryStore",
    "Store",
    "open_store",
]

# Hadoop also writes "file:/folder" and "dbfs:/folder"; none of these may become a local folder of that odd name.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")

# Stores opened by name live as long as the process, so that every task finds the same one.
_named: dict[str, MemoryStore] = {}
_named_lock = threading.Lock()


def open_store(url: str) -> Store:
    """The store at `url`: a path, ``file:///path`` or ``memory://name``.

    Raises: `ConfigError` for anything else.

    >>> open_store("memory://demo").url
    'memory://demo'
    """
    scheme = _SCHEME.match(url)
    if url and scheme is None:
        return LocalStore(Path(url).expanduser())
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path:
        return LocalStore(unquote(parts.path))
    if parts.scheme == "memory" and parts.netloc and parts.path in ("", "/"):
        return _open_named(parts.netloc)
    raise ConfigError(
        f"checkpoint location {url!r}",
        cause="only a path, file:///path and memory://name are supported",
        next_step="use a folder that all machines of the cluster can reach under the same path",
        url=url,
    )


def _open_named(name: str) -> MemoryStore:
    with _named_lock:
        if name not in _named:
            _named[name] = MemoryStore(name)
        return _named[name]
