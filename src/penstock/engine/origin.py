"""Restoring from elsewhere: a savepoint, or a copy of a checkpoint folder, becomes the beginning of a new folder.

The new folder first gets `restored.json`, which says what is being restored. Then it gets the files, and last, when
the driver takes over, its first manifest. A crash on the way leaves a folder that goes on with the same restore and
refuses anything else.

The original of a fork may run meanwhile and retire the checkpoint whose files are being brought. Then everything is
looked at again, from the checkpoint that is the newest by then; files that are here already need not come again.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from penstock.engine.checkpoints import Checkpoints
from penstock.engine.transfer import Transfer
from penstock.errors import CorruptFile, ForkRefused, MissingFile, NoSuchCheckpoint, RestoreRefused
from penstock.protocol.fork import source_query_id
from penstock.protocol.ids import CheckpointId
from penstock.protocol.layout import MANIFESTS, RESTORED
from penstock.protocol.manifest import Manifest
from penstock.store.base import AlreadyExists, Store
from penstock.text import redacted

ORIGIN_TRIES = 50
"""Each try brings only the files that are new since the last one, so a second one is nearly always enough."""

_NAMED = re.compile(r"(?P<place>.+)@(?P<checkpoint>\d{1,10})")


class OriginWentOn(Exception):
    """The query in the other folder retired the checkpoint while its files were looked at."""

    def __init__(self, origin: Origin) -> None:
        super().__init__()
        self.origin = origin


class Restored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """From where a folder was begun: the content of `restored.json`."""

    origin: str
    identity: str
    checkpoint: CheckpointId
    """Of a fork, the one with which it was begun: it may go on from another one of the same origin."""
    fork: str | None = None
    """The identity of the query that begins here, where it is another one."""

    @property
    def place(self) -> str:
        return f"{self.origin}@{self.checkpoint}"

    @property
    def options(self) -> str:
        """What the user has to say to go on with it."""
        return f"restore={self.place!r}" + (", fork=True" if self.fork is not None else "")


@dataclass(frozen=True, slots=True)
class Origin:
    """A checkpoint in another folder."""

    checkpoints: Checkpoints
    manifest: Manifest
    fork: str | None = None
    """The identity of the fork that goes on from it; None: the same query goes on."""
    named: bool = False
    """Whether the user said which checkpoint, and not only in which folder."""

    @property
    def restored(self) -> Restored:
        return Restored(
            origin=redacted(self.checkpoints.store.url),
            identity=self.manifest.identity,
            checkpoint=self.manifest.checkpoint,
            fork=self.fork,
        )

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Raises: `OriginWentOn` in place of `MissingFile` where the file went with its checkpoint."""
        try:
            yield
        except MissingFile as error:
            if self.checkpoints.holds(self.manifest.checkpoint):
                raise
            raise OriginWentOn(self) from error


def find_origin(place: str, open_store: Callable[[str], Store]) -> Origin:
    """The newest checkpoint in a folder, or with ``folder@42`` that one.

    Raises: `NoSuchCheckpoint`, `CorruptFile`, `FormatTooNew`.
    """
    named = _NAMED.fullmatch(place)
    # A folder's own name may end like that.
    if named is not None and not open_store(place).list(MANIFESTS):
        checkpoints = Checkpoints(open_store(named["place"]))
        return Origin(checkpoints, checkpoints.restorable(CheckpointId(int(named["checkpoint"]))), named=True)
    checkpoints = Checkpoints(open_store(place))
    manifest = checkpoints.newest()
    if manifest is None:
        raise NoSuchCheckpoint(
            f"{checkpoints.store.url} holds no checkpoint",
            cause="the path is not that of a savepoint or of a checkpoint folder",
            next_step=f"name the folder that holds {MANIFESTS}/",
        )
    return Origin(checkpoints, manifest)


def fork_identity(target: Store, origin: Origin) -> str:
    """That of a fork that was begun in this folder and not finished, or a new one.

    Raises: `CorruptFile`.
    """
    begun = _read(target) if target.exists(RESTORED) else None
    if begun is not None and begun.fork is not None and begun.identity == origin.manifest.identity:
        return begun.fork
    return uuid.uuid4().hex


def gave_up(went_on: OriginWentOn) -> ForkRefused:
    """The error after too many tries."""
    url = went_on.origin.checkpoints.store.url
    return ForkRefused(
        f"{ORIGIN_TRIES} times, the query in {url} retired the checkpoint before its files were brought",
        cause="it publishes faster than its new files can be copied, and keeps few checkpoints (retain=)",
        next_step="take a savepoint of it and restore that, or let it keep more checkpoints",
    )


def require_new(checkpoints: Checkpoints, origin: Origin) -> None:
    """Raises: `RestoreRefused` for a folder that has a history of its own."""
    ids = checkpoints.ids()
    if not ids:
        return
    here, there = checkpoints.store.url, origin.checkpoints.store.url
    if here == there and origin.fork is not None:
        next_step = "give the fork a checkpoint folder of its own"
    elif here == there:
        next_step = f"restore={origin.manifest.checkpoint} names a checkpoint of the same folder"
    else:
        next_step = "leave restore out to go on here, or restore into a new folder"
    raise RestoreRefused(
        f"checkpoint={here} holds checkpoints {ids[0]} to {ids[-1]} already; restore={there} names checkpoint "
        f"{origin.manifest.checkpoint}",
        cause="the restore was done before, or the folder belongs to another query",
        next_step=next_step,
    )


def require_finished(store: Store) -> None:
    """For a start without restore: refuses a folder into which a restore was begun and not finished.

    Raises: `RestoreRefused`.
    """
    if store.exists(RESTORED):
        begun = _read(store)
        raise RestoreRefused(
            f"{store.url} has no checkpoint; restoring {begun.place} into it was begun and not finished",
            cause="the driver died while it restored",
            next_step=f"start again with {begun.options}, or use a new folder",
        )


def bring(origin: Origin, content: Manifest, target: Store) -> None:
    """Makes the files of a checkpoint part of a new folder; publishes nothing. May be repeated after a crash.

    `content` is the origin's checkpoint, without in-flight data that is dropped on the way.

    Raises: `RestoreRefused` when another restore was begun there, or a rival finished this one; `OriginWentOn`.
    """
    _begin(origin.restored, target)
    query_id = None if origin.fork is None else source_query_id(origin.fork)
    try:
        with origin.watched():
            Transfer(content, origin.checkpoints.store, target, query_id).run()
    except MissingFile:
        require_new(Checkpoints(target), origin)  # a rival's collector removes what it does not need any more
        raise


def _begin(wanted: Restored, target: Store) -> None:
    try:
        target.create(RESTORED, msgspec.json.encode(wanted))
        return
    except AlreadyExists:
        begun = _read(target)
    same = (begun.identity, begun.fork) == (wanted.identity, wanted.fork)
    # The original of a fork may have gone on since. What an earlier try brought, and nobody needs now, the first sweep
    # removes. The file stays as it is: without it for a moment, a crash would leave a folder that passes for a new one.
    if same and (wanted.fork is not None or begun.checkpoint == wanted.checkpoint):
        return
    raise RestoreRefused(
        f"restoring {wanted.place} into {target.url}, into which restoring {begun.place} was begun",
        cause="two restores were asked for the same folder",
        next_step=f"finish the first with {begun.options}, or restore into another folder",
    )


def _read(store: Store) -> Restored:
    try:
        return msgspec.json.decode(store.read(RESTORED), type=Restored)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptFile(
            f"{RESTORED} in {store.url}: {error}",
            cause="the file was edited, or written by another version of Penstock",
            next_step="restore into a new folder",
            path=RESTORED,
        ) from error
