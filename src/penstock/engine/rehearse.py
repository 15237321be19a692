"""A rehearsal: a changed program on a fork of the real state and on the real source, which writes to no table.

Everything lies in one folder beside the checkpoint, which is removed at the end, whatever the end is. First the
checkpoint is brought there, by hard links where that is possible. After that the original is not looked at any more.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.engine.checkpoints import Checkpoints
from penstock.engine.differences import Differences, compare
from penstock.engine.feed import Feed
from penstock.engine.history import Listener
from penstock.engine.options import Config
from penstock.engine.origin import ORIGIN_TRIES, Origin, OriginWentOn, find_origin, gave_up
from penstock.engine.query import Query
from penstock.engine.rehearsal import EpochFigures, Rehearsal, Size
from penstock.engine.replay import Recorded, ReplayFeed
from penstock.engine.transfer import Transfer
from penstock.errors import ConfigError, PenstockError, StopTimeout
from penstock.graph.pipeline import Pipeline
from penstock.observe.events import EpochPublished, Event, decode_events
from penstock.observe.journal import read_journal
from penstock.protocol.ids import BatchId, CheckpointId
from penstock.protocol.manifest import Manifest
from penstock.sinks.rehearsed import Rehearsed
from penstock.store import open_store
from penstock.store.base import Store
from penstock.store.local import LocalStore

LOOK_S = 0.1
IDLE_S = 20.0
"""After so long without an epoch, and with nothing in flight, the source has no more rows."""
STOP_S = 60.0

Around = Callable[[Feed, Store], Feed]
Launch = Callable[[Pipeline, Config, tuple[Listener, ...], Around], Query]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be rehearsed."""

    checkpoint: str
    new: Pipeline
    epochs: int
    timeout_s: float
    old: Pipeline | None = None
    """The program to compare with."""
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By sink, the columns by which results are compared."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `start`, for the new program."""
    letters: frozenset[str] = frozenset()
    """Sinks that get dead letters."""


def rehearse(wanted: Wanted, launch: Launch) -> Rehearsal:
    """Raises: `PenstockError` where the program cannot start on that checkpoint; what `launch` raises."""
    _require_keys(wanted)
    work = _work_beside(find_origin(wanted.checkpoint, open_store).checkpoints.store)
    try:
        origin = _bring(wanted.checkpoint, f"{work}/origin")
        return _Rehearsing(wanted, launch, work, origin.manifest, origin.checkpoints, origin.named).run()
    finally:
        _remove(work)


def _require_keys(wanted: Wanted) -> None:
    sinks = {binding.name for binding in wanted.new.sinks()}
    for name in wanted.keys:
        if name not in sinks:
            raise ConfigError(
                f"keys names {name!r}", cause="a typo, or the sink has no name=", next_step=f"sinks are {sorted(sinks)}"
            )
    if wanted.keys and wanted.old is None:
        raise ConfigError(
            "keys without against",
            cause="results are compared with those of the old program on the same rows",
            next_step="name the old program, too: against=",
            option="keys",
        )


# -- the folder --------------------------------------------------------------------------------------------------------


def _work_beside(store: Store) -> str:
    """A new folder near the checkpoint, so that its files can be linked."""
    name = f"rehearsal-{uuid.uuid4().hex[:12]}"
    if not isinstance(store, LocalStore):
        return f"{store.url.rstrip('/')}.{name}"
    root = Path(store.root)
    if os.access(root.parent, os.W_OK):
        work = root.parent / f".{root.name}.{name}"
        work.mkdir()
        return str(work)
    return tempfile.mkdtemp(prefix=f"penstock-{name}-")


def _remove(work: str) -> None:
    store = open_store(work)
    if isinstance(store, LocalStore):
        shutil.rmtree(work, ignore_errors=True)
    else:
        with suppress(PenstockError):
            store.delete(entry.path for entry in store.list(""))


def _bring(place: str, target: str) -> Origin:
    """A private copy of the checkpoint. Raises: `NoSuchCheckpoint`, `ForkRefused`."""
    into = open_store(target)
    for left in reversed(range(ORIGIN_TRIES)):
        origin = find_origin(place, open_store)
        try:
            with origin.watched():
                Transfer(origin.manifest, origin.checkpoints.store, into).run()
        except OriginWentOn as went_on:
            if not left:
                raise gave_up(went_on) from went_on
            continue
        Checkpoints(into).publish(origin.manifest)
        return origin
    raise AssertionError("the last try returns or raises")


# -- the runs ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Seen:
    """What a run told so far."""

    events: list[Event] = field(default_factory=list)
    epochs: int = 0
    last_s: float = field(default_factory=time.monotonic)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, EpochPublished):
            self.last_s = time.monotonic()
            self.epochs += event.kind != "takeover"


@dataclass(frozen=True, slots=True)
class _Ran:
    """A run that is over."""

    ended: str
    seen: _Seen
    manifest: Manifest
    sinks: dict[str, Rehearsed]
    error: PenstockError | None

    @property
    def drained(self) -> bool:
        return self.error is None and not self.manifest.rows_in_flight


@dataclass(frozen=True, slots=True)
class _Rehearsing:
    wanted: Wanted
    launch: Launch
    work: str
    manifest: Manifest
    original: Checkpoints
    named: bool
    """Whether one checkpoint was named: then a migration changes state that fits, too, as at a start."""

    def run(self) -> Rehearsal:
        wanted = self.wanted
        new = self._run("new", wanted.new, wanted.options, lambda feed, _: feed, wanted.epochs)
        old, why = self._old(new)
        return self._report(new, old, why)

    def _old(self, new: _Ran) -> tuple[_Ran | None, str | None]:
        """The old program on the rows that the new one has read."""
        wanted, before = self.wanted, self.manifest.source.batch_id
        if wanted.old is None:
            return None, None
        if not new.drained:
            return None, "the new program did not get through what was in flight"
        if {*wanted.new.shape().sources} != {*wanted.old.shape().sources}:
            return None, "the programs read different sources"
        first = BatchId(0 if before is None else before + 1)
        last = new.manifest.source.batch_id
        recorded = Recorded(open_store(f"{self.work}/new"), first, BatchId(first - 1 if last is None else last))
        options = {name: wanted.options[name] for name in _OF_BOTH if name in wanted.options}
        options["trigger"] = "available_now"
        old = self._run("old", wanted.old, options, lambda feed, store: ReplayFeed(feed, store, recorded), epochs=None)
        if old.error is not None:
            return old, f"the old program ended with {old.error.code}: {old.error.seen}"
        return old, None if old.drained else "the old program did not get through what was in flight"

    def _run(
        self, name: str, pipeline: Pipeline, options: Mapping[str, Any], around: Around, epochs: int | None
    ) -> _Ran:
        folder = f"{self.work}/{name}"
        sinks = {
            binding.name: Rehearsed(f"{folder}-sink-{number}", binding.name in self.wanted.keys)
            for number, binding in enumerate(pipeline.sinks())
        }
        quiet = dataclasses.replace(pipeline.with_sinks(sinks), added_listeners={})
        defaults = {
            "max_parallelism": self.manifest.max_parallelism,
            "parallelism": max(self.manifest.parallelism.values(), default=1),
        }
        place = f"{self.work}/origin" + (f"@{self.manifest.checkpoint}" if self.named else "")
        fixed = {"restore": place, "fork": True, "retain": 1}
        # Spark wants names of streaming queries to differ.
        given = {**defaults, **options, **fixed, "name": f"rehearsal-{name}-{self.work[-12:]}"}
        seen = _Seen()
        query = self.launch(quiet, Config.of(folder, **given), (seen,), around)
        ended, error = self._awaited(query, seen, epochs)
        return _Ran(ended, seen, query.manifest(), sinks, error)

    def _awaited(self, query: Query, seen: _Seen, epochs: int | None) -> tuple[str, PenstockError | None]:
        """Waits for the end, and asks for it. After Ctrl-C the query has stopped when this raises."""
        until_s = time.monotonic() + self.wanted.timeout_s
        why: str | None = None
        try:
            while not query.await_termination(LOOK_S):
                now_s = time.monotonic()
                if why is not None:
                    if now_s > until_s + STOP_S:
                        self._stop(query, drain=False)
                    continue
                why = self._why_end(query, seen, epochs, now_s, until_s)
                if why is not None:
                    self._stop(query, drain=self.wanted.old is not None and now_s <= until_s)
        except PenstockError as error:
            return f"ended after {seen.epochs} epochs with an error", error
        except BaseException:
            self._stop(query, drain=False, wait_s=STOP_S)
            raise
        return f"{seen.epochs} epochs, {why or 'then the source had no more rows'}", None

    def _why_end(self, query: Query, seen: _Seen, epochs: int | None, now_s: float, until_s: float) -> str | None:
        if epochs is not None and seen.epochs >= epochs:
            return "as many as were asked for"
        if now_s > until_s:
            return f"then {self.wanted.timeout_s:g} s were over"
        if now_s - seen.last_s > IDLE_S and not query.manifest().rows_in_flight and query.waiting_for is not None:
            return f"then no rows came for {IDLE_S:g} s"
        return None

    def _stop(self, query: Query, *, drain: bool, wait_s: float = LOOK_S) -> None:
        with suppress(StopTimeout):
            query.stop(drain=drain, timeout=wait_s)

    # -- the report ----------------------------------------------------------------------------------------------------

    def _report(self, new: _Ran, old: _Ran | None, why: str | None) -> Rehearsal:
        wanted, before, after = self.wanted, self.manifest, new.manifest
        compared = old if why is None else None
        counters = {
            name: count - before.counters.get(name, 0)
            for name, count in after.counters.items()
            if count != before.counters.get(name, 0)
        }
        return Rehearsal(
            folder=self.original.store.url,
            checkpoint=CheckpointId(before.checkpoint),
            ended=new.ended,
            figures=EpochFigures.of(new.seen.events),
            original=self._history(),
            in_flight=(_in_flight(before), _in_flight(after)),
            state=(_state(before), _state(after)),
            rows_out={name: sink.count() for name, sink in new.sinks.items() if name not in wanted.letters},
            dead_letters=sum(sink.count() for name, sink in new.sinks.items() if name in wanted.letters),
            counters=counters,
            against=None if old is None else EpochFigures.of(old.seen.events),
            differences=() if compared is None else tuple(self._compared(new, compared)),
            not_compared=why if wanted.keys else None,
            error=None if new.error is None else new.error.to_report(),
        )

    def _history(self) -> EpochFigures:
        with suppress(PenstockError):
            return EpochFigures.of(decode_events(read_journal(self.original.store)))
        return EpochFigures()

    def _compared(self, new: _Ran, old: _Ran) -> list[Differences]:
        return [
            compare(name, key, new.sinks[name].rows(), old.sinks[name].rows() if name in old.sinks else ())
            for name, key in self.wanted.keys.items()
        ]


_OF_BOTH = ("parallelism", "max_parallelism", "epoch", "epoch_timeout", "epoch_retries", "max_error_rate")
"""Options that the old program gets, too; the others are about the change."""


def _in_flight(manifest: Manifest) -> Size:
    return Size(manifest.rows_in_flight, manifest.bytes_in_flight)


def _state(manifest: Manifest) -> Size:
    files = [file for table in manifest.state.values() for file in table]
    return Size(sum(file.rows for file in files), sum(file.bytes for file in files))
