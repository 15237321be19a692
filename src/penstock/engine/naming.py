"""How a feed knows the sources of a pipeline: by itself, by names in Spark's offset log, or by their places there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeAlias

import msgspec

from penstock.engine.sourcelog import read_tail, source_folders
from penstock.engine.sparkorigin import Begin, TakenOffsets, take_offsets
from penstock.errors import RestoreRefused
from penstock.protocol.evolve import Evolution, ReaderCounts
from penstock.protocol.manifest import Manifest, SourcePosition
from penstock.protocol.sourcelog import (
    Sources,
    Tail,
    first_names,
    known_names,
    moved,
    parked_names,
    put_back,
    why_fixed,
)
from penstock.store import open_store
from penstock.store.base import Store


@dataclass(frozen=True, slots=True)
class ByName:
    """The feed keeps positions by name itself."""


@dataclass(frozen=True, slots=True)
class Logged:
    """Spark's offset log has them, under names that Penstock gives."""

    readers: Mapping[str, tuple[str, ...]]
    """What each source is made of, in Spark's words."""

    @property
    def counts(self) -> dict[str, int]:
        return {source: len(found) for source, found in self.readers.items()}


@dataclass(frozen=True, slots=True)
class Placed:
    """Spark's sources cannot be given names."""

    why: str


Naming: TypeAlias = ByName | Logged | Placed


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What is known about the sources of a checkpoint before the decision on a change."""

    by_name: bool
    fixed: str = ""
    readers: ReaderCounts | None = None
    tail: Tail = field(default_factory=Tail)
    sources: Sources | None = None
    """None where Spark's log stays as it is."""
    taken: tuple[TakenOffsets, ...] = ()
    """What sources that begin here take from queries of Spark."""


def look_at_sources(
    manifest: Manifest,
    naming: Naming,
    store: Store,
    begins: Sequence[Begin] = (),
    open_store: Callable[[str], Store] = open_store,
) -> SourceFacts:
    """`store` holds the checkpoint. Raises: `RestoreRefused` for a query of Spark whose offsets cannot be told."""
    if isinstance(naming, ByName):
        return SourceFacts(by_name=True)
    position, old = manifest.source, list(manifest.shape.sources)
    tail = read_tail(store, position) or Tail()
    if isinstance(naming, Placed):
        return SourceFacts(by_name=False, fixed=naming.why, tail=tail)
    counts, fixed = naming.counts, why_fixed(position, tail, old)
    were, parked = known_names(position, old), parked_names(position)
    folders = source_folders(store)
    new = [begin for begin in begins if begin.source not in old and begin.source not in parked]
    taken = take_all(new, naming, {*folders, *chain(*were.values(), *parked.values())}, open_store)
    seeds = {name: one.seed for name, one in taken.items()}
    readers = ReaderCounts(
        {name: len(found) for name, found in were.items()},
        {name: len(found) for name, found in parked.items()},
        counts,
        {name: seed.told for name, seed in seeds.items()},
    )
    sources = Sources(counts, folders, seeds)
    return SourceFacts(
        by_name=fixed is None,
        fixed=fixed or "",
        readers=readers,
        tail=tail,
        sources=sources,
        taken=tuple(taken.values()),
    )


def take_all(
    begins: Sequence[Begin], naming: Naming, names: Collection[str], open_store: Callable[[str], Store]
) -> dict[str, TakenOffsets]:
    """By source, what it takes from a query of Spark. Raises: `RestoreRefused`."""
    taken: dict[str, TakenOffsets] = {}
    used = set(names)
    for begin in begins:
        if not isinstance(naming, Logged):
            why = naming.why if isinstance(naming, Placed) else "the source is not one of Spark"
            raise RestoreRefused(
                f"from_checkpoint={begin.place!r} of source {begin.source}: {why}",
                cause="offsets of another query are given to readers by name",
                next_step="read each source once, with spark.readStream",
            )
        taken[begin.source] = take_offsets(begin, naming.readers[begin.source], used, open_store)
        used |= set(taken[begin.source].seed.offsets)
    return taken


def first_position(
    naming: Naming, store: Store, begins: Sequence[Begin], open_store: Callable[[str], Store]
) -> tuple[SourcePosition, tuple[TakenOffsets, ...]]:
    """Where a new query begins. Raises: `RestoreRefused`."""
    folders = source_folders(store) if isinstance(naming, Logged) else frozenset[str]()
    taken = take_all(begins, naming, folders, open_store)
    if not isinstance(naming, Logged):
        return SourcePosition(), ()
    sources = Sources(naming.counts, folders, {name: one.seed for name, one in taken.items()})
    if taken:
        return moved(SourcePosition(), Tail(), [], {}, sources), tuple(taken.values())
    return SourcePosition(names=first_names(sources)), ()


def position_after(stored: Manifest, evolution: Evolution, facts: SourceFacts, reset: frozenset[str]) -> SourcePosition:
    """Where the changed pipeline goes on in its sources."""
    position = stored.source
    now = [line.name for line in evolution.lines if line.kind == "source" and line.word != "forgotten"]
    if facts.sources is not None and facts.by_name:
        was = {after: before for before, after in evolution.names.items() if before in stored.shape.sources}
        carried = {name: was[name] for name in now if name in was}
        named = not isinstance(position.names, msgspec.UnsetType)
        places = [evolution.names.get(name) for name in stored.shape.sources]
        if named or places != now or reset & set(now):
            sources = replace(facts.sources, anew=reset)
            return moved(position, facts.tail, list(stored.shape.sources), carried, sources)
    if facts.tail.replaced:
        return put_back(position, facts.tail.entries)
    return position
