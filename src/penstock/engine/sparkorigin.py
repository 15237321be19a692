"""Coming from Structured Streaming: where another query of Spark has read its sources up to, told by its checkpoint.

Only offsets are taken, and what Spark keeps about files that were read. The other query's folder is not changed. State
of its operators is not taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import msgspec

from penstock.errors import MissingFile, RestoreRefused
from penstock.protocol.layout import (
    MANIFESTS,
    SOURCE,
    SPARK_COMMITS,
    SPARK_OFFSETS,
    SPARK_SOURCES,
    SPARK_STATE,
)
from penstock.protocol.sourcelog import NotAnEntry, Seed, free_name, read_entry
from penstock.store.base import AlreadyExists, Store

_NAMED = re.compile(r"(?P<place>.+)@(?P<reader>[A-Za-z0-9_]+)")
_FILES = re.compile(r"FileSource\[(?P<path>[^\[\]{}*?,]+)\]")


@dataclass(frozen=True, slots=True)
class Begin:
    """What the user wants of another query's checkpoint."""

    source: str
    place: str
    without_state: bool


@dataclass(frozen=True, slots=True)
class TakenOffsets:
    """The offsets for one source, and the folders that have to be copied for it: from there, to here."""

    source: str
    seed: Seed
    store: Store
    folders: tuple[tuple[str, str], ...]


def take_offsets(
    begin: Begin, readers: Sequence[str], names: Collection[str], open_store: Callable[[str], Store]
) -> TakenOffsets:
    """`readers` describe what the source is made of; `names` are in use. Changes nothing.

    Raises: `RestoreRefused` for whatever cannot be told.
    """
    store, wanted = _opened(begin, open_store)
    batch = _finished(begin, store)
    if store.list(SPARK_STATE) and not begin.without_state:
        raise _refused(
            begin,
            f"{store.url} has state of the query's operators (aggregates, joins, deduplication)",
            cause="Penstock takes the offsets of the query, never its state: totals would begin at 0",
            next_step="from_checkpoint with without_state=True, if your operators may begin empty",
        )
    entry = read_entry(store.read(f"{SPARK_OFFSETS}/{batch}").decode(errors="replace"))
    if isinstance(entry, NotAnEntry):
        raise _refused(
            begin,
            f"{SPARK_OFFSETS}/{batch} of {store.url} cannot be read: {entry.why}",
            cause="the file was edited, or a newer Spark wrote it",
            next_step="restore the folder from a copy",
        )
    known = list(entry.offsets)
    picked = _picked(begin, known, readers, wanted, by_name=entry.by_name)
    for reader, place in zip(readers, picked, strict=True):
        _require_same_kind(begin, reader, entry.offsets[place], store, place)
    used = set(names)
    made = []
    for _ in picked:
        made.append(free_name(begin.source, used))
        used.add(made[-1])
    offsets = {name: entry.offsets[place] for name, place in zip(made, picked, strict=True)}
    told = f"read on from micro-batch {batch} of {store.url}"
    return TakenOffsets(begin.source, Seed(offsets, entry.metadata, told), store, tuple(zip(picked, made, strict=True)))


def bring_folders(taken: TakenOffsets, target: Store) -> None:
    """Copies what Spark knows about the sources besides offsets. May be repeated after a crash."""
    for place, name in taken.folders:
        folder = f"{SPARK_SOURCES}/{place}"
        for entry in taken.store.list(folder):
            try:
                path = f"{SOURCE}/{SPARK_SOURCES}/{name}{entry.path.removeprefix(folder)}"
                target.create(path, taken.store.read(entry.path))
            except AlreadyExists:
                pass  # an earlier try had got this far


def _opened(begin: Begin, open_store: Callable[[str], Store]) -> tuple[Store, str | None]:
    named = _NAMED.fullmatch(begin.place)
    for place, wanted in ((begin.place, None), *([(named["place"], named["reader"])] if named else [])):
        store = open_store(place)
        if store.list(MANIFESTS):
            raise _refused(
                begin,
                f"{store.url} is a checkpoint folder of Penstock",
                cause="from_checkpoint is for a query of Structured Streaming",
                next_step=f"start with restore={place!r}, which takes state and rows in flight too",
            )
        if store.list(SPARK_OFFSETS):
            return store, wanted
    raise _refused(
        begin,
        f"{open_store(begin.place).url} has no offsets/",
        cause="the path is not the checkpointLocation of a streaming query, or the query never began",
        next_step="name the folder that holds offsets/ and commits/, or leave from_checkpoint out",
    )


def _finished(begin: Begin, store: Store) -> int:
    begun, done = _newest(store, SPARK_OFFSETS), _newest(store, SPARK_COMMITS)
    if begun != done:
        raise _refused(
            begin,
            f"{store.url}: micro-batch {begun} was begun and not finished (the last in commits/ is {done})",
            cause="the query was killed, or is running: whether its sink has those rows cannot be told from here",
            next_step="start the query once more with trigger(availableNow=True), let it end, then start again",
        )
    return begun


def _newest(store: Store, log: str) -> int:
    names = (entry.path.rpartition("/")[2] for entry in store.list(log))
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def _picked(
    begin: Begin, known: Sequence[str], readers: Sequence[str], wanted: str | None, *, by_name: bool
) -> Sequence[str]:
    """Which offsets of the query are those of the readers of the source."""
    if wanted is not None:
        if wanted in known and len(readers) == 1:
            return [wanted]
    elif by_name and len(readers) == 1 and begin.source in known:
        return [begin.source]
    elif len(known) == len(readers) and (not by_name or len(known) == 1):
        return known
    what = "named" if by_name else "at the places"
    raise _refused(
        begin,
        f"the query has sources {what} {', '.join(known)}; source {begin.source} is made of {len(readers)} readers",
        cause="which offsets belong to it cannot be told" if wanted is None else f"there is no source {wanted!r}",
        next_step=f"name one, for example from_checkpoint='{begin.place.partition('@')[0]}@{known[0]}'"
        if known
        else "leave from_checkpoint out: the query has read nothing",
    )


def _require_same_kind(begin: Begin, reader: str, offset: str | None, store: Store, place: str) -> None:
    """Raises: `RestoreRefused` where offsets are those of another source, as far as that can be told."""
    if offset is None:
        return
    try:
        value = msgspec.json.decode(offset)
    except msgspec.DecodeError:
        return
    files = reader.startswith("FileSource[")
    kafka = reader.lower() == "kafka"
    by_file = isinstance(value, dict) and "logOffset" in value
    by_topic = isinstance(value, dict) and bool(value) and all(isinstance(part, dict) for part in value.values())
    if files != by_file or (kafka and not by_topic):
        raise _other_source(begin, reader, f"its offset is {offset[:200]}")
    match = _FILES.fullmatch(reader)
    if match is None:
        return
    seen = _first_file(store, place)
    folder = re.sub(r"^file:/+", "/", match["path"]).rstrip("/")
    if seen is not None and f"{folder}/" not in re.sub(r"^file:/+", "/", seen):
        raise _other_source(begin, reader, f"it has read {seen[:300]}")


def _first_file(store: Store, place: str) -> str | None:
    """A file that the query has read."""
    for entry in sorted(store.list(f"{SPARK_SOURCES}/{place}"), key=lambda entry: entry.path):
        if entry.path.rpartition("/")[2].startswith("."):
            continue
        try:
            lines = store.read(entry.path).decode(errors="replace").splitlines()[1:]
            return next((str(msgspec.json.decode(line)["path"]) for line in lines if line), None)
        except (MissingFile, msgspec.DecodeError, KeyError, TypeError):
            return None
    return None


def _other_source(begin: Begin, reader: str, seen: str) -> RestoreRefused:
    return _refused(
        begin,
        f"source {begin.source} reads {reader}; of the query {seen}",
        cause="the query reads another source",
        next_step="read the same folder or topic as the query did, or leave from_checkpoint out",
    )


def _refused(begin: Begin, seen: str, *, cause: str, next_step: str) -> RestoreRefused:
    return RestoreRefused(
        f"from_checkpoint={begin.place!r} of source {begin.source}: {seen}",
        cause=cause,
        next_step=next_step,
        source=begin.source,
    )
