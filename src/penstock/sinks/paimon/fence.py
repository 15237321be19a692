"""A table's folder as something of unknown origin: whatever pypaimon makes of names in it stays inside.

Snapshots, manifests and options name files. pypaimon puts such names behind the table's path and opens, writes or
deletes what is there. Here every path passes one gate first: below the table's folder, no ``..``, no link on the way,
no file that is larger than metadata can be. Local warehouses only; an object store has neither links nor ``..``.
"""

from __future__ import annotations

import io
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from pypaimon.filesystem.local_file_io import LocalFileIO

from penstock.errors import CorruptFile
from penstock.sinks.paimon import avro, local
from penstock.store import beneath
from penstock.store.paths import is_a_link, unsafe_name

METADATA = ("snapshot", "schema", "manifest", "tag", "branch", "consumer", "changelog", "index", "statistics")
"""Folders of a table that hold no data files."""
METADATA_BYTES_MAX = 256 << 20
"""pypaimon reads a snapshot, a schema or a manifest as a whole."""
DATA_FILE = re.compile(r".*[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-\d+\.(parquet|orc|avro)(\.row)?")
"""The name of a data file, as Paimon gives them."""


def inside(root: Path, path: str | os.PathLike[str]) -> str:
    """A path as it is called below the table's folder, known to stay there. Raises: `UnsafeName`."""
    text = os.fspath(path)
    above = f"{root}/"
    relative = text[len(above) :] if text.startswith(above) else ""
    parts = [part for part in relative.split("/") if part not in {"", "."}]
    if not parts or ".." in parts or "\0" in relative:
        raise unsafe_name(text, f"the table's folder {root}")
    here = str(root)
    for part in parts:
        here = f"{here}/{part}"
        try:
            mode = os.lstat(here).st_mode
        except (FileNotFoundError, NotADirectoryError):
            break
        except OSError as error:  # a name that no file system takes
            raise unsafe_name(text, f"the table's folder {root}") from error
        if not beneath.is_plain(mode):
            raise is_a_link("/".join(parts), str(root))
    return "/".join(parts)


def is_data_file(relative: str) -> bool:
    """Whether a path below a table's folder is one that a data file can have.

    >>> is_data_file("day=1/bucket-0/data-00000000-0000-0000-0000-000000000000-0.parquet")
    True
    >>> is_data_file("schema/schema-0")
    False
    """
    *folders, name = relative.split("/")
    return (
        bool(folders)
        and folders[0] not in METADATA
        and folders[-1].startswith("bucket-")
        and not {"", ".", ".."} & set(folders)
        and DATA_FILE.fullmatch(name) is not None
    )


def require_plain(root: Path) -> None:
    """The folders of metadata are folders, and schemas are files that a catalog can read. Raises: `CorruptFile`."""
    for name in METADATA:
        inside(root, root / name)
    found = beneath.foreign(root, "schema")
    if found is not None:
        raise is_a_link(found, str(root))
    for schema in beneath.walk(root, "schema"):
        if schema.info.st_size > METADATA_BYTES_MAX:
            raise _too_large(schema.path, schema.info.st_size)


def leftover(root: Path) -> str | None:
    """A schema or a snapshot in a table's folder, by its path below it; None where there is none."""
    for kind in ("schema", "snapshot"):
        with suppress(FileNotFoundError, NotADirectoryError):
            names = [path.name for path in (root / kind).iterdir() if path.name.startswith(f"{kind}-")]
            if names:
                return f"{kind}/{max(names)}"
    return None


def require_unused(root: Path) -> None:
    """A table made here would be mixed with what is left of another one. Raises: `CorruptFile`."""
    found = leftover(root)
    if found is not None:
        raise CorruptFile(
            f"{root} holds {found!r}, but pypaimon finds no table there",
            cause="the table's schema was removed, or a file has a name that no schema has, like schema-007",
            next_step="restore the table from a copy, or remove the foreign file; a new table needs an empty folder",
            path=root,
        )


def _too_large(path: str, size: int) -> CorruptFile:
    return CorruptFile(
        f"{path} has {size} bytes; metadata of a table is read as a whole, up to {METADATA_BYTES_MAX} bytes",
        cause="the file is not what its name says",
        next_step="restore the table from a copy",
        path=path,
    )


def fenced(table: Any) -> Any:
    """The same table; on a local warehouse it reaches nothing outside of its folder."""
    root = local.as_local(str(table.table_path))
    if root is not None and type(table.file_io) is LocalFileIO:
        table.file_io = FencedFileIO(table.file_io, Path(root))
    return table


class FencedFileIO(LocalFileIO):  # type: ignore[misc]  # pypaimon has no types
    """Nearly every method of pypaimon's asks `_to_file` where a path leads; tests/sinks/test_paimon_fence.py finds the
    others."""

    def __init__(self, inner: LocalFileIO, root: Path) -> None:
        self.__dict__.update(inner.__dict__)
        self._root = root

    def _to_file(self, path: str) -> Path:
        file: Path = super()._to_file(path)
        if file != self._root:
            inside(self._root, file)
        return file

    def write_mosaic(self, path: str, *data: Any, **options: Any) -> None:
        super().write_mosaic(str(self._to_file(path)), *data, **options)

    def write_vortex(self, path: str, *data: Any, **options: Any) -> None:
        super().write_vortex(str(self._to_file(path)), *data, **options)

    def new_input_stream(self, path: str) -> Any:
        stream = super().new_input_stream(path)
        size = os.fstat(stream.fileno()).st_size
        folder = inside(self._root, self._to_file(path)).partition("/")[0]
        if size > METADATA_BYTES_MAX and folder in METADATA:
            stream.close()
            raise _too_large(path, size)
        return _bounded(stream, path) if folder == "manifest" else stream


def _bounded(stream: Any, path: str) -> io.BytesIO:
    """The bytes that were looked at, not the file: it may be another one when it is read again."""
    with stream:
        data: bytes = stream.read()
    if data.startswith(avro.MAGIC):
        avro.require_bounded(data, path)
    return io.BytesIO(data)
