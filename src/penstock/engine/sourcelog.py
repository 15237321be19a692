"""The folder in which Structured Streaming keeps its offsets: which entries belong to a checkpoint, and which do not.

Spark owns the folder. Its files are written once, under temporary names, then renamed; old ones are removed by Spark.
"""

from __future__ import annotations

from penstock.errors import CorruptFile, MissingFile
from penstock.protocol.ids import BatchId
from penstock.protocol.layout import SOURCE, SOURCE_COMMITS, SOURCE_OFFSETS, offsets_path, read_source_entry
from penstock.store.base import AlreadyExists, Entry, Store

FILE_BYTES_MAX = 1 << 30
_TRIES = 5
"""Spark removes a few old entries at a time; a second look is nearly always enough."""


def beyond(path: str, batch_id: BatchId | None) -> bool:
    """Whether a file is an entry of the offset or commit log for a micro-batch after `batch_id`."""
    number = read_source_entry(path)
    return number is not None and number > (-1 if batch_id is None else batch_id)


def all_committed(store: Store) -> bool:
    """Whether Spark was done with every micro-batch that it began."""
    return _newest(store, SOURCE_OFFSETS) <= _newest(store, SOURCE_COMMITS)


def knows_names(store: Store) -> bool:
    """Whether Spark's offset log has sources by name, as it does since version 2 of its format."""
    newest = _newest(store, SOURCE_OFFSETS)
    if newest < 0:
        return False
    try:
        return store.read(offsets_path(BatchId(newest))).startswith(b"v2\n")
    except MissingFile:
        return False


def rewind_source(store: Store, batch_id: BatchId | None) -> None:
    """Forgets everything after `batch_id`: Spark plans the next micro-batch from the newest entries that it finds."""
    store.delete([entry.path for entry in store.list(SOURCE) if beyond(entry.path, batch_id)])


def bring_source(origin: Store, target: Store, batch_id: BatchId | None) -> int:
    """Copies the folder as it was after `batch_id`; returns its bytes. A running query may write to it meanwhile.

    Copies, never links, because Spark owns the files and may change them.
    """
    for last_try in (*[False] * (_TRIES - 1), True):
        try:
            return sum(_bring(origin, target, entry) for entry in _entries(origin, batch_id))
        except MissingFile:  # an old entry that Spark removed after we had listed it; list again
            if last_try:
                raise
    raise AssertionError("the last try returns or raises")


def _entries(origin: Store, batch_id: BatchId | None) -> list[Entry]:
    found = origin.list(SOURCE)
    return [entry for entry in found if not beyond(entry.path, batch_id) and not _temporary(entry.path)]


def _bring(origin: Store, target: Store, entry: Entry) -> int:
    if entry.bytes > FILE_BYTES_MAX:
        raise CorruptFile(
            f"{entry.path} in {origin.url} has {entry.bytes} bytes, more than any log of Structured Streaming",
            cause="the file is not what its name says; a copy of it would fill the disk",
            next_step="restore source/ from a copy, or remove the file if it is not Spark's",
            path=entry.path,
        )
    try:
        target.adopt(entry.path, origin, link=False)
    except AlreadyExists:
        pass  # an earlier try had got this far
    return entry.bytes


def _newest(store: Store, log: str) -> int:
    numbers = [read_source_entry(entry.path) for entry in store.list(log)]
    return max((number for number in numbers if number is not None), default=-1)


def _temporary(path: str) -> bool:
    return path.removesuffix(".crc").endswith(".tmp")
