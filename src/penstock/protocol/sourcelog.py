"""Spark's offset log, as far as a change of sources needs it: its entries, and what becomes of them.

An entry of version 1 has one offset per line, by the place of its source. An entry of version 2 has names, or places
written as names; its settings say which. Spark cannot turn one into the other. Penstock can: it gives Spark's sources
names of its own choice, remembers them in the manifest, and rewrites the last two entries, which are all that Spark
reads. A source that came by its place keeps that as its name, so the folder in which Spark keeps more about it stays.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from penstock.protocol.ids import BatchId
from penstock.protocol.manifest import SourcePosition, SourceRewrite

EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
"""Spark's setting for sources by name; every entry of the log repeats it."""
VOID = "-"
_DIGEST = 32


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry: what Spark's sources had been read up to after a micro-batch."""

    metadata: Mapping[str, Any]
    offsets: Mapping[str, str | None]
    """By name, or by place: "0", "1"."""
    by_name: bool


@dataclass(frozen=True, slots=True)
class NotAnEntry:
    """A file of the log that cannot be read."""

    why: str


def read_entry(text: str) -> LogEntry | NotAnEntry:
    """
    >>> read_entry('v1\\n{"conf":{}}\\n{"logOffset":3}\\n-').offsets
    {'0': '{"logOffset":3}', '1': None}
    """
    version, _, rest = text.partition("\n")
    head, _, body = rest.partition("\n")
    lines = body.split("\n") if body else []
    if version not in {"v1", "v2"}:
        return NotAnEntry(f"it begins with {version[:20]!r}, not with v1 or v2")
    try:
        metadata = msgspec.json.decode(head.strip() or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        return NotAnEntry(f"its second line is no JSON object: {error}")
    if version == "v1":
        return LogEntry(metadata, {str(place): _offset(line) for place, line in enumerate(lines)}, by_name=False)
    pairs = [line.partition(":") for line in lines]
    if any(not colon for _, colon, _ in pairs):
        return NotAnEntry("a line has no name before its offset")
    conf = metadata.get("conf")
    by_name = isinstance(conf, dict) and str(conf.get(EVOLUTION)).lower() == "true"
    return LogEntry(metadata, {name: _offset(line) for name, _, line in pairs}, by_name)


def _offset(line: str) -> str | None:
    return None if line == VOID else line


def write_entry(metadata: Mapping[str, Any], offsets: Mapping[str, str | None]) -> str:
    """An entry of version 2 with names, as Spark writes it."""
    conf = metadata.get("conf")
    after = {**metadata, "conf": {**(conf if isinstance(conf, dict) else {}), EVOLUTION: "true"}}
    after.setdefault("batchWatermarkMs", 0)
    after.setdefault("batchTimestampMs", 0)
    after.setdefault("sourceMetadataInfo", {})
    head = msgspec.json.encode(after).decode()
    lines = [f"{name}:{VOID if offset is None else offset}" for name, offset in offsets.items()]
    return "\n".join(["v2", head, *lines])


def digest(entry: bytes) -> str:
    """What a manifest remembers of the entry of its micro-batch."""
    return hashlib.sha256(entry).hexdigest()[:_DIGEST]


# -- a change of sources -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tail:
    """The entries that Spark reads at a start: that of the checkpoint's micro-batch, and the one before it."""

    entries: Mapping[BatchId, str] = field(default_factory=dict)
    replaced: bool = False
    """They are not in the log any more: Penstock put them aside when it rewrote them."""

    def entry(self, batch: BatchId | None) -> LogEntry | NotAnEntry:
        text = None if batch is None else self.entries.get(batch)
        return NotAnEntry("it is not there") if text is None else read_entry(text)


@dataclass(frozen=True, slots=True)
class Seed:
    """Where a source begins that another query has read so far: offsets by the name that Spark's source gets here."""

    offsets: Mapping[str, str | None]
    metadata: Mapping[str, Any]
    told: str
    """For people: whose offsets these are."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of a pipeline as Spark is to know them."""

    counts: Mapping[str, int]
    """By source, how many sources of Spark it reads."""
    folders: Collection[str] = ()
    """Names that Spark has used, which a source that begins anew must not get."""
    seeds: Mapping[str, Seed] = field(default_factory=dict)
    """By source."""
    anew: Collection[str] = ()
    """Sources that begin from their beginning though they were read before."""


SourceNames: TypeAlias = dict[str, tuple[str, ...]]


def known_names(position: SourcePosition, sources: Sequence[str]) -> SourceNames:
    """By source of a checkpoint, what Spark's log calls it: names, or places where it has one source in each place."""
    if not isinstance(position.names, msgspec.UnsetType):
        return position.names
    if position.batch_id is None:
        return {}
    return {source: (str(place),) for place, source in enumerate(sources)}


def parked_names(position: SourcePosition) -> SourceNames:
    """By source that is not read any more, what Spark's log called it."""
    return {} if isinstance(position.parked, msgspec.UnsetType) else {k: tuple(v) for k, v in position.parked.items()}


def why_fixed(position: SourcePosition, tail: Tail, sources: Sequence[str]) -> str | None:
    """Why the sources of a checkpoint must stay as they are, in number and order; None: they may change."""
    if position.batch_id is None or not isinstance(position.names, msgspec.UnsetType):
        return None
    match tail.entry(position.batch_id):
        case NotAnEntry(why):
            return f"entry {position.batch_id} of Spark's offset log cannot be read: {why}"
        case entry if entry.by_name:
            return "the readers of this checkpoint have names that the program gave them with readStream.name(…)"
        case entry if len(entry.offsets) != len(sources):
            return (
                f"Spark's offset log has {len(entry.offsets)} sources by their places and the checkpoint has"
                f" {len(sources)}: one of them is made of several readers"
            )
    return None


def first_names(sources: Sources) -> SourceNames:
    """Names for a pipeline that begins anew."""
    return _fresh(sources.counts, set(sources.folders))


def moved(
    position: SourcePosition,
    tail: Tail,
    old: Sequence[str],
    carried: Mapping[str, str],
    sources: Sources,
) -> SourcePosition:
    """The position for other sources. `carried` has the name in the checkpoint of each source that goes on.

    A source that is not read any more is parked: if it comes back, it is read on from there.
    """
    names = known_names(position, old)
    parked = {} if isinstance(position.parked, msgspec.UnsetType) else dict(position.parked)
    carried = {name: was for name, was in carried.items() if name not in sources.anew and was in names}
    back = {
        name: parked.pop(name)
        for name in sources.counts
        if name in parked and name not in carried and name not in sources.anew
    }
    kept = {name: names[was] for name, was in carried.items()} | {name: tuple(found) for name, found in back.items()}
    taken = {*sources.folders, *itertools.chain(*names.values(), *parked.values(), *back.values())}
    seeded = {name: tuple(seed.offsets) for name, seed in sources.seeds.items() if name not in kept}
    begun = {name: count for name, count in sources.counts.items() if name not in kept and name not in seeded}
    after = {**kept, **seeded, **_fresh(begun, taken | set(itertools.chain(*seeded.values())))}
    added = {spark: offset for found in back.values() for spark, offset in found.items()}
    for name in seeded:
        added |= sources.seeds[name].offsets
    last = tail.entry(position.batch_id)
    if isinstance(last, LogEntry):
        ended = [name for name in old if name not in carried.values() and name in names]
        parked |= {name: {spark: last.offsets.get(spark) for spark in names[name]} for name in ended}
    changed = msgspec.structs.replace(
        position, names={name: after[name] for name in sources.counts}, parked=parked or msgspec.UNSET
    )
    return _rewritten(changed, tail, set(itertools.chain(*(names[was] for was in carried.values()))), added, sources)


def _rewritten(
    position: SourcePosition, tail: Tail, kept: Collection[str], added: Mapping[str, str | None], sources: Sources
) -> SourcePosition:
    """With the entries as Spark is to find them, where they differ."""
    batch = position.batch_id
    if batch is None:
        if not added:
            return position
        metadata = next(seed.metadata for seed in sources.seeds.values())
        batch, texts = BatchId(0), {BatchId(0): write_entry(metadata, added)}
    else:
        texts = {}
        for number in sorted(tail.entries):
            entry = tail.entry(number)
            if isinstance(entry, LogEntry):
                offsets = {name: offset for name, offset in entry.offsets.items() if name in kept}
                same = entry.by_name and offsets == entry.offsets and not added
                texts[number] = tail.entries[number] if same else write_entry(entry.metadata, {**offsets, **added})
        if texts == tail.entries and not tail.replaced:
            return position
    return put_back(msgspec.structs.replace(position, batch_id=batch), texts)


def put_back(position: SourcePosition, entries: Mapping[BatchId, str]) -> SourcePosition:
    """The position with entries that Spark's log is to have, before anything is read."""
    assert position.batch_id is not None
    return msgspec.structs.replace(
        position,
        offsets_digest=digest(entries[position.batch_id].encode()),
        rewrite=SourceRewrite(entries={str(number): text for number, text in entries.items()}),
        rewind=True,
    )


def _fresh(counts: Mapping[str, int], taken: Collection[str]) -> SourceNames:
    """A name for each source of Spark that is not taken: letters, digits and underscores, as Spark wants it.

    >>> _fresh({"orders-eu": 2, "late": 1}, {"late"})
    {'orders-eu': ('orders_eu', 'orders_eu_2'), 'late': ('late_2',)}
    """
    used = set(taken)
    made: SourceNames = {}
    for source, count in counts.items():
        names = []
        for _ in range(count):
            names.append(free_name(source, used))
            used.add(names[-1])
        made[source] = tuple(names)
    return made


def free_name(source: str, taken: Collection[str]) -> str:
    """The first name like that of a source which is not taken."""
    stem = re.sub(r"[^A-Za-z0-9_]", "_", source)[:100]
    return next(name for name in itertools.chain([stem], _numbered(stem)) if name not in taken)


def _numbered(stem: str) -> itertools.chain[str]:
    return itertools.chain.from_iterable((f"{stem}_{number}",) for number in itertools.count(2))
