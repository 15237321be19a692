"""What a checkpoint needs of its storage, small enough for a local folder, memory and an object store.

Names are relative, with ``/``. Everything but `append` is create-once: a name is never written twice, so nothing
needs compare-and-swap, locks or renames.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import pyarrow as pa


class AlreadyExists(Exception):
    """`Store.create` found the name taken: another process was first."""


class Entry(NamedTuple):
    """A stored file."""

    path: str
    bytes: int


class FileWriter(Protocol):
    """A new file; it exists for readers, durably, only after `close`."""

    def write(self, data: bytes | memoryview) -> int: ...
    def tell(self) -> int: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class FileReader(Protocol):
    """Random access to an immutable file."""

    @property
    def size(self) -> int: ...
    def read_into(self, offset: int, target: memoryview) -> None:
        """Fills `target`; a file too short is a `CorruptFile`."""
        ...

    def close(self) -> None: ...


class Store(Protocol):
    """A folder of immutable files."""

    @property
    def url(self) -> str:
        """Opens the same store on another machine, by `penstock.store.open_store`."""
        ...

    def create(self, path: str, data: bytes) -> None:
        """Writes a small file durably if nothing has that name; raises `AlreadyExists` otherwise. Atomic."""
        ...

    def read(self, path: str) -> bytes: ...
    def exists(self, path: str) -> bool: ...
    def list(self, prefix: str) -> list[Entry]:
        """Files below the folder `prefix`, recursively, sorted by path; a folder that is not there is empty.

        Whatever `create` returned from is in every later list: the newest checkpoint is found by it.
        """
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Deletes files; one that is gone already is not an error."""
        ...

    def adopt(self, path: str, origin: Store, *, link: bool = True) -> None:
        """Takes a file of another store over under the same name; raises `AlreadyExists` if the name is taken.

        A hard link where both are on one file system and `link` allows it, else a copy. Durable and atomic either way.
        """
        ...

    def leftovers(self, older_than_s: float) -> tuple[Entry, ...]:
        """Temporary files that a crash left behind, which `list` does not show; `delete` takes their paths."""
        ...

    def append(self, path: str, line: bytes) -> int:
        """Adds a line to a log for people and returns how long that is now, 0 if it is not known.

        Best effort, never needed for recovery.
        """
        ...

    def open_writer(self, path: str) -> FileWriter:
        """Raises: `AlreadyExists` if the name is taken; storage that cannot tell yet says so at `close`."""
        ...

    def open_reader(self, path: str) -> FileReader: ...
    def local_path(self, path: str) -> str | None:
        """Where the file can be memory-mapped, if it can: the file itself, or a copy on this machine."""
        ...

    def drop_copy(self, path: str) -> bool:
        """Forgets a copy on this machine that does not hold the file's bytes; False: there is no copy."""
        ...

    def put_down(self, data: pa.Buffer) -> pa.Buffer:
        """Keeps bytes of a file that could not be mapped: in a mapped temporary file if reading them again would be
        expensive, else in memory."""
        ...

    @property
    def log_bytes_max(self) -> int:
        """How long a log may become before the journal starts a new one."""
        ...
