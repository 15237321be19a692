"""The folder in which Structured Streaming keeps its offsets: which entries belong to a checkpoint, and which do not.

Spark owns the folder. Its files are written once, under temporary names, then renamed; old ones are removed by Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress

import msgspec

from penstock.errors import CorruptFile, MissingFile
from penstock.protocol.ids import BatchId
from penstock.protocol.layout import (
    SOURCE,
    SOURCE_COMMITS,
    SOURCE_METADATA,
    SOURCE_OFFSETS,
    SPARK_SOURCES,
    offsets_checksum_path,
    offsets_path,
    read_source_entry,
    replaced_path,
)
from penstock.protocol.manifest import SourcePosition
from penstock.protocol.sourcelog import Tail, digest
from penstock.store.base import AlreadyExists, Entry, Store

FILE_BYTES_MAX = 1 << 30
_TRIES = 5
"""Spark removes a few old entries at a time; a second look is nearly always enough."""

_METADATA = frozenset({SOURCE_METADATA, f"{SOURCE}/.metadata.crc"})
"""The id of a streaming query, and the checksum that Hadoop keeps beside it."""


def beyond(path: str, batch_id: BatchId | None) -> bool:
    """Whether a file is an entry of the offset or commit log for a micro-batch after `batch_id`."""
    number = read_source_entry(path)
    return number is not None and number > (-1 if batch_id is None else batch_id)


def all_committed(store: Store) -> bool:
    """Whether Spark was done with every micro-batch that it began."""
    return _newest(store, SOURCE_OFFSETS) <= _newest(store, SOURCE_COMMITS)


def read_tail(store: Store, position: SourcePosition) -> Tail | None:
    """The entries with which a checkpoint's position ends, as they were then; None where they are lost."""
    batch = position.batch_id
    if batch is None:
        return Tail()
    if not isinstance(position.rewrite, msgspec.UnsetType):
        return Tail({BatchId(int(number)): text for number, text in position.rewrite.entries.items()})
    near = (BatchId(batch - 1), batch)
    found = {number: text for number in near if (text := _text(store, number)) is not None}
    if batch in found and position.offsets_digest in (None, digest(found[batch].encode())):
        return Tail(found)
    if position.offsets_digest is None:
        return None
    try:
        aside = msgspec.json.decode(store.read(replaced_path(position.offsets_digest)), type=dict[str, str])
    except (MissingFile, msgspec.DecodeError):
        return None
    entries = {BatchId(int(number)): text for number, text in aside.items() if number.isdecimal()}
    if batch not in entries or digest(entries[batch].encode()) != position.offsets_digest:
        return None
    return Tail(entries, replaced=True)


def _text(store: Store, batch: BatchId) -> str | None:
    try:
        return store.read(offsets_path(batch)).decode() if batch >= 0 else None
    except (MissingFile, UnicodeDecodeError):
        return None


def source_folders(store: Store) -> frozenset[str]:
    """The names under which Spark has kept something about a source."""
    prefix = f"{SOURCE}/{SPARK_SOURCES}/"
    return frozenset(entry.path.removeprefix(prefix).split("/")[0] for entry in store.list(prefix.rstrip("/")))


def has_entries(store: Store) -> bool:
    """Whether Spark's offset log has begun."""
    return _newest(store, SOURCE_OFFSETS) >= 0


def rewrite_source(store: Store, position: SourcePosition) -> None:
    """Makes the log end with the entries that a manifest asks for. May be repeated after a crash.

    Entries that are replaced are put aside first, so that the checkpoint before the change can be restored.
    """
    if isinstance(position.rewrite, msgspec.UnsetType):
        return
    wanted = {BatchId(int(number)): text for number, text in position.rewrite.entries.items()}
    there = {batch: text for batch in wanted if (text := _text(store, batch)) is not None}
    if there == wanted:
        return
    last = max(wanted)
    # The newest is written first: where it is there, a crash cut this off, and what is left is a mixture.
    if last in there and there[last] != wanted[last]:
        aside = msgspec.json.encode({str(batch): text for batch, text in there.items()})
        _create(store, replaced_path(digest(there[last].encode())), aside)
    for batch in sorted(wanted, reverse=True):
        if there.get(batch) != wanted[batch]:
            store.delete([path for path in (offsets_path(batch), offsets_checksum_path(batch)) if store.exists(path)])
            _create(store, offsets_path(batch), wanted[batch].encode())
    if _newest(store, SOURCE_COMMITS) < 0 and last == 0:
        # The log begins with what another query has read: Spark is not to plan that once more.
        _create(store, SOURCE_METADATA, msgspec.json.encode({"id": position.query_id or str(uuid.uuid4())}))
        _create(store, f"{SOURCE_COMMITS}/{last}", b'v1\n{"nextBatchWatermarkMs":0}')


def _create(store: Store, path: str, content: bytes) -> None:
    try:
        store.create(path, content)
    except AlreadyExists:
        pass  # an earlier try had got this far


def rewind_source(store: Store, batch_id: BatchId | None) -> None:
    """Forgets everything after `batch_id`: Spark plans the next micro-batch from the newest entries that it finds."""
    store.delete([entry.path for entry in store.list(SOURCE) if beyond(entry.path, batch_id)])


def bring_source(origin: Store, target: Store, batch_id: BatchId | None, query_id: str | None = None) -> int:
    """Copies the folder as it was after `batch_id`; returns its bytes. A running query may write to it meanwhile.

    Copies, never links, because Spark owns the files and may change them. With `query_id`, another streaming query
    reads on from the same offsets.
    """
    if query_id is None:
        return _bring_entries(origin, target, batch_id, lambda _: True)
    copied = _bring_entries(origin, target, batch_id, lambda path: path not in _METADATA)
    with suppress(AlreadyExists):
        if copied:  # without entries Spark begins anew, and gives the query an id
            target.create(SOURCE_METADATA, msgspec.json.encode({"id": query_id}))
    return copied


def _bring_entries(origin: Store, target: Store, batch_id: BatchId | None, wanted: Callable[[str], bool]) -> int:
    for last_try in (*[False] * (_TRIES - 1), True):
        try:
            return sum(_bring(origin, target, entry) for entry in _entries(origin, batch_id) if wanted(entry.path))
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
