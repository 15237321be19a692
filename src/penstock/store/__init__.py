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

OBJECT_SCHEMES = ("s3", "s3a", "gs", "abfss")

# Stores opened by name live as long as the process, so that every task finds the same one.
_named: dict[str, MemoryStore] = {}
_named_lock = threading.Lock()


def open_store(url: str) -> Store:
    """The store at `url`: a path, ``file:///path``, ``memory://name``, or a folder of an object store:
    ``s3://bucket/folder``, ``gs://bucket/folder``, ``abfss://container@account.dfs.core.windows.net/folder``.

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
    if parts.scheme in OBJECT_SCHEMES:
        return _open_object_store(url)
    raise ConfigError(
        f"checkpoint location {url!r}",
        cause="only a path, file:///path, memory://name, s3://, gs:// and abfss:// are supported",
        next_step="use a folder that all machines of the cluster can reach under the same path, or an object store",
        url=url,
    )


def _open_object_store(url: str) -> Store:
    """Imported here: most queries need no client, and Spark forks its Python workers."""
    try:
        from penstock.store.object import open_object_store
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise ConfigError(
            f"checkpoint location {url!r}",
            cause="the package obstore, by which object stores are reached, is not installed",
            next_step="pip install 'penstock[object]', on the driver and on the executors",
            url=url,
        ) from error
    return open_object_store(url)


def _open_named(name: str) -> MemoryStore:
    with _named_lock:
        if name not in _named:
            _named[name] = MemoryStore(name)
        return _named[name]
