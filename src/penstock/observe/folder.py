"""Reads a checkpoint folder as a `QueryView`: of a query that runs, ended or died, on this machine or an object store.

Reading changes nothing, takes no lock and believes nothing: what cannot be read is listed, texts are cut, counts are
bounded. `Folder` remembers what it has read, so that looking again costs little more than what is new.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from penstock.errors import MissingFile, PenstockError
from penstock.observe.commit_log import commit_log
from penstock.observe.condense import seconds_of
from penstock.observe.events import EPOCH_TAG, LINE_BYTES_MAX, DriverProcess, QueryStarted, decode_events
from penstock.observe.gathered import EPOCHS_MAX, Gathered, cut
from penstock.observe.journal import Pieces, list_pieces
from penstock.observe.model import CheckpointView, QueryView, Run, UnreadableFile
from penstock.observe.process import life_of
from penstock.observe.verdict import Life, RunFacts, judge
from penstock.observe.views import (
    checkpoint_view,
    edge_views,
    lately,
    links_of,
    operator_views,
    rates_of,
    sink_views,
    source_views,
    stage_views,
)
from penstock.protocol.codec import TooNew, UnreadableManifest, decode_manifest
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.layout import (
    EVENTS,
    GENERATIONS,
    MANIFESTS,
    OLDER_EVENTS,
    manifest_path,
    read_generation_path,
    read_manifest_path,
    read_retired_path,
)
from penstock.protocol.manifest import Manifest
from penstock.store.base import Store
from penstock.store.local import LocalStore
from penstock.text import redacted

CHECKPOINTS_MAX = 100
"""So many of the newest are shown one by one."""
CHUNK_BYTES = 8 << 20
LOG_TIMES = 4
"""A log may be so many times as long as it should be, since putting a piece away may fail for a while."""
SURELY = 1.5
"""So many times the bytes that the epochs shown one by one are likely to take."""
DISK_FULL_BYTES = 64 << 10
"""With less room than that a driver cannot write down why it ended."""


class _Claim(msgspec.Struct):
    """What a driver wrote when it claimed a generation."""

    host: str = ""
    pid: int = 0
    started_at: str = ""
    library: str = ""


class Folder:
    """A checkpoint folder that is looked at, once or again and again."""

    def __init__(
        self,
        store: Store,
        *,
        now_s: Callable[[], float] = time.time,
        life: Callable[[DriverProcess | None], Life] = life_of,
    ) -> None:
        self._store, self._now_s, self._life = store, now_s, life
        self._gathered = Gathered()
        self._pieces: Pieces | None = None
        self._read_bytes = 0
        self._torn = b""
        self._left_bytes = 0
        """Of older pieces of the history that are still to be read."""
        self._checkpoints: dict[CheckpointId, CheckpointView] = {}

    def look(self) -> QueryView:
        """Raises: `StorageFailed` when the folder cannot be reached; never because of what it holds."""
        store = self._store
        ids, unreadable = _checkpoint_ids(store), list[UnreadableFile]()
        self._follow_journal()
        newest = self._newest(ids, unreadable)
        checkpoints = self._checkpoint_views(ids, newest, unreadable)
        claims = self._claims()
        gathered, now_s = self._gathered, self._now_s()
        facts = self._facts(claims, newest, has_checkpoint=bool(ids))
        recent = lately(gathered.epochs)
        commits = commit_log(gathered.commits)
        started = gathered.started
        return QueryView(
            folder=redacted(store.url),
            looked_at=datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds"),
            name=_name(started, store.url),
            identity=None if newest is None else newest.identity,
            library=None if newest is None else cut(newest.library),
            verdict=judge(facts),
            alive=gathered.alive,
            runs=_runs(gathered, claims),
            sources=() if newest is None else source_views(newest),
            stages=() if newest is None else stage_views(newest, recent),
            operators=() if newest is None else operator_views(newest),
            edges=() if newest is None else edge_views(newest, recent),
            sinks=() if newest is None else sink_views(newest, commits),
            links=() if newest is None else links_of(newest, () if started is None else started.links, recent),
            checkpoints=checkpoints,
            checkpoint_ids=tuple(ids),
            newest=newest,
            unreadable=tuple(unreadable),
            epochs=tuple(gathered.epochs),
            older_epochs=tuple(gathered.older_epochs),
            commits=tuple(commits),
            older_commits=tuple(gathered.older_commits),
            rescales=tuple(gathered.rescales),
            dropped=tuple(gathered.dropped),
            savepoints=tuple(gathered.savepoints),
            upkeep=tuple(gathered.upkeep),
            failures=tuple(gathered.failures),
            rates=rates_of(recent),
            counters={} if newest is None else dict(newest.counters),
        )

    # -- the history -----------------------------------------------------------------------------------------------

    def _follow_journal(self) -> None:
        """Feeds what was written since the last look; all of it where a piece was put away meanwhile."""
        for _ in range(3):
            pieces = list_pieces(self._store)
            try:
                if pieces != self._pieces:
                    self._read_bytes, self._torn, self._gathered = 0, b"", Gathered()
                    sizes = {entry.path: entry.bytes for entry in self._store.list(OLDER_EVENTS)}
                    self._left_bytes = sum(sizes.get(path, 0) for path in pieces.paths)
                    for path in pieces.paths:
                        self._feed_file(path)
                        self._torn = b""
                    self._left_bytes = 0
                    self._pieces, self._read_bytes = pieces, 0
                self._feed_current()
            except MissingFile:
                self._pieces = None  # put away since we looked
            if self._pieces is not None and list_pieces(self._store) == pieces:
                return
        # Put away again and again: what was read is a moment of the past, and good enough.

    def _feed_current(self) -> None:
        if self._store.exists(EVENTS):
            self._read_bytes = self._feed_file(EVENTS, self._read_bytes)
        elif self._read_bytes:
            self._forget()

    def _forget(self) -> None:
        """The history is shorter than what was read of it: a piece was put away between two of our steps, or somebody
        deleted the folder, and another query began there. What is remembered would be told for its own."""
        self._pieces, self._checkpoints = None, {}

    def _feed_file(self, path: str, offset: int = 0) -> int:
        """Feeds a file from an offset on, a part at a time; returns where it ended. Of one that is far longer than a
        driver lets it become, the end is read."""
        reader = self._store.open_reader(path)
        try:
            if offset > reader.size:
                self._forget()
                return 0
            offset = max(offset, reader.size - LOG_TIMES * self._store.log_bytes_max)
            while offset < reader.size:
                part = bytearray(min(CHUNK_BYTES, reader.size - offset))
                reader.read_into(offset, memoryview(part))
                offset += len(part)
                self._feed(bytes(part))
        finally:
            reader.close()
        return offset

    def _feed(self, data: bytes) -> None:
        """Whole lines; the beginning of a line waits for its end. One that is too long to be an event is forgotten."""
        whole, _, self._torn = (self._torn + data).rpartition(b"\n")
        if len(self._torn) > LINE_BYTES_MAX:
            self._torn = b""
        self._left_bytes -= len(data)
        for event in decode_events(whole, brief=self._is_old(whole)):
            self._gathered.add(event)

    def _is_old(self, lines: bytes) -> bool:
        """Whether so much follows that these epochs will only be summed: most of what they hold is then not needed."""
        epochs = lines.count(EPOCH_TAG)
        return epochs > 0 and self._left_bytes > SURELY * EPOCHS_MAX * len(lines) / epochs

    # -- manifests and generations ---------------------------------------------------------------------------------

    def _newest(self, ids: list[CheckpointId], unreadable: list[UnreadableFile]) -> Manifest | None:
        for checkpoint in reversed(ids[-CHECKPOINTS_MAX:]):
            manifest = _manifest(self._store, checkpoint, unreadable)
            if manifest is not None:
                return manifest
        return None

    def _checkpoint_views(
        self, ids: list[CheckpointId], newest: Manifest | None, unreadable: list[UnreadableFile]
    ) -> tuple[CheckpointView, ...]:
        """Manifests never change, so each is read once."""
        wanted = ids[-CHECKPOINTS_MAX:]
        known = {checkpoint: view for checkpoint, view in self._checkpoints.items() if checkpoint in set(wanted)}
        if newest is not None:
            known[newest.checkpoint] = checkpoint_view(newest)
        bad = {entry.path for entry in unreadable}
        for checkpoint in wanted:
            if checkpoint not in known and manifest_path(checkpoint) not in bad:
                manifest = _manifest(self._store, checkpoint, unreadable)
                if manifest is not None:
                    known[checkpoint] = checkpoint_view(manifest)
        self._checkpoints = known
        return tuple(known[checkpoint] for checkpoint in sorted(known))

    def _claims(self) -> dict[Generation, _Claim]:
        """The newest generations that drivers claimed."""
        numbers = [
            number
            for entry in self._store.list(GENERATIONS)
            if (number := read_generation_path(entry.path)) is not None and entry.bytes < 1 << 16
        ]
        found: dict[Generation, _Claim] = {}
        for number in sorted(numbers)[-CHECKPOINTS_MAX:]:
            try:
                found[number] = msgspec.json.decode(self._store.read(f"{GENERATIONS}/{number:010d}.json"), type=_Claim)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, PenstockError):
                found[number] = _Claim()
        return found

    def _facts(self, claims: dict[Generation, _Claim], newest: Manifest | None, *, has_checkpoint: bool) -> RunFacts:
        gathered = self._gathered
        started, troubles = gathered.started, gathered.troubles
        generation = max(claims, default=None)
        if started is not None and (generation is None or started.generation >= generation):
            commit = next(iter(troubles.commits.values()), None)
            return RunFacts(
                now_s=self._now_s(),
                generation=started.generation,
                claimed_at=started.at,
                started=started,
                stopped=gathered.stopped,
                life=self._life(started.process),
                where=_described(started.process),
                last_sign=gathered.last_sign,
                last_sign_s=gathered.last_sign_s,
                alive=gathered.alive,
                epoch=gathered.epoch,
                heard=gathered.heard,
                refused=gathered.refused,
                source=troubles.source,
                commit=commit,
                storage=troubles.storage,
                failed=troubles.failed,
                uncommitted=0 if newest is None else max((len(s.pending) for s in newest.sinks.values()), default=0),
                disk_full=_disk_full(self._store),
                has_checkpoint=has_checkpoint,
            )
        claim = _Claim() if generation is None else claims[generation]
        return RunFacts(
            now_s=self._now_s(),
            generation=generation,
            claimed_at=claim.started_at or None,
            where=f"process {claim.pid} on {cut(claim.host)}" if claim.pid else "its driver",
            last_sign=claim.started_at or None,
            last_sign_s=seconds_of(claim.started_at),
            refused=gathered.refused,
            has_checkpoint=has_checkpoint,
        )


def _checkpoint_ids(store: Store) -> list[CheckpointId]:
    paths = [entry.path for entry in store.list(MANIFESTS)]
    retired = set(map(read_retired_path, paths))
    found = map(read_manifest_path, paths)
    return sorted(checkpoint for checkpoint in found if checkpoint is not None and checkpoint not in retired)


def _manifest(store: Store, checkpoint: CheckpointId, unreadable: list[UnreadableFile]) -> Manifest | None:
    """None for one that is gone since it was listed, and for one that cannot be read, which is then listed."""
    path = manifest_path(checkpoint)
    try:
        match decode_manifest(store.read(path)):
            case Manifest() as manifest if manifest.checkpoint == checkpoint:
                return manifest
            case Manifest() as manifest:
                why = f"it is the manifest of checkpoint {manifest.checkpoint}"
                unreadable.append(UnreadableFile(path, "PEN-012", why))
            case TooNew(version):
                unreadable.append(
                    UnreadableFile(path, "PEN-011", f"it has format {version}, which is newer than this library")
                )
            case UnreadableManifest(why):
                unreadable.append(UnreadableFile(path, "PEN-012", cut(why)))
    except MissingFile:
        pass
    except PenstockError as error:
        unreadable.append(UnreadableFile(path, error.code, cut(error.seen)))
    return None


def _runs(gathered: Gathered, claims: dict[Generation, _Claim]) -> tuple[Run, ...]:
    runs = {
        generation: Run(generation, cut(claim.host), claim.pid, cut(claim.library), cut(claim.started_at) or None)
        for generation, claim in claims.items()
    }
    runs.update(gathered.runs)
    return tuple(runs[generation] for generation in sorted(runs))


def _described(process: DriverProcess | None) -> str:
    return "its driver" if process is None else f"process {process.pid} on {cut(process.host)}"


def _name(started: QueryStarted | None, url: str) -> str:
    return cut(started.name) if started is not None else redacted(url.rstrip("/").rpartition("/")[2])


def _disk_full(store: Store) -> bool:
    if not isinstance(store, LocalStore):
        return False
    try:
        room = os.statvfs(store.root)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize < DISK_FULL_BYTES
