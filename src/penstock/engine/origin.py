"""Restoring from elsewhere: a savepoint, or a copy of a checkpoint folder, becomes the beginning of a new folder.

The new folder first gets `restored.json`, which says what is being restored. Then it gets the files, and last, when
the driver takes over, its first manifest. A crash on the way leaves a folder that goes on with the same restore and
refuses anything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from penstock.engine.checkpoints import Checkpoints
from penstock.engine.transfer import Transfer
from penstock.errors import CorruptFile, NoSuchCheckpoint, RestoreRefused
from penstock.protocol.ids import CheckpointId
from penstock.protocol.layout import MANIFESTS, RESTORED
from penstock.protocol.manifest import Manifest
from penstock.store.base import AlreadyExists, Store
from penstock.text import redacted

_NAMED = re.compile(r"(?P<place>.+)@(?P<checkpoint>\d{1,10})")


class Restored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From where a folder was begun: the content of `restored.json`."""

    origin: str
    identity: str
    checkpoint: CheckpointId

    @property
    def place(self) -> str:
        return f"{self.origin}@{self.checkpoint}"


@dataclass(frozen=True, slots=True)
class Origin:
    """A checkpoint in another folder."""

    checkpoints: Checkpoints
    manifest: Manifest

    @property
    def restored(self) -> Restored:
        return Restored(
            origin=redacted(self.checkpoints.store.url),
            identity=self.manifest.identity,
            checkpoint=self.manifest.checkpoint,
        )


def find_origin(place: str, open_store: Callable[[str], Store]) -> Origin:
    """The newest checkpoint in a folder, or with ``folder@42`` that one.

    Raises: `NoSuchCheckpoint`, `CorruptFile`, `FormatTooNew`.
    """
    named = _NAMED.fullmatch(place)
    # A folder's own name may end like that.
    if named is not None and not open_store(place).list(MANIFESTS):
        checkpoints = Checkpoints(open_store(named["place"]))
        return Origin(checkpoints, checkpoints.read(CheckpointId(int(named["checkpoint"]))))
    checkpoints = Checkpoints(open_store(place))
    manifest = checkpoints.newest()
    if manifest is None:
        raise NoSuchCheckpoint(
            f"{checkpoints.store.url} holds no checkpoint",
            cause="the path is not that of a savepoint or of a checkpoint folder",
            next_step=f"name the folder that holds {MANIFESTS}/",
        )
    return Origin(checkpoints, manifest)


def require_new(checkpoints: Checkpoints, origin: Origin) -> None:
    """Raises: `RestoreRefused` for a folder that has a history of its own."""
    ids = checkpoints.ids()
    if not ids:
        return
    here, there = checkpoints.store.url, origin.checkpoints.store.url
    if here == there:
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
            next_step=f"start again with restore={begun.place!r}, or use a new folder",
        )


def bring(origin: Origin, content: Manifest, target: Store) -> None:
    """Makes the files of a checkpoint part of a new folder; publishes nothing. May be repeated after a crash.

    `content` is the origin's checkpoint, without in-flight data that is dropped on the way.

    Raises: `RestoreRefused` when another restore was begun there.
    """
    wanted = origin.restored
    try:
        target.create(RESTORED, msgspec.json.encode(wanted))
    except AlreadyExists:
        begun = _read(target)
        if (begun.identity, begun.checkpoint) != (wanted.identity, wanted.checkpoint):
            raise RestoreRefused(
                f"restoring {wanted.place} into {target.url}, into which restoring {begun.place} was begun",
                cause="two restores were asked for the same folder",
                next_step=f"finish the first with restore={begun.place!r}, or restore into another folder",
            ) from None
    Transfer(content, origin.checkpoints.store, target).run()


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
