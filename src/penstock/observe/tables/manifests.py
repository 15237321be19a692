"""Which checkpoints a folder holds, and what they say. Reads only, and believes nothing: see `protocol.trust`."""

from __future__ import annotations

from typing import assert_never

from penstock.errors import CorruptFile, FormatTooNew, MissingFile, NoSuchCheckpoint
from penstock.protocol.codec import TooNew, UnreadableManifest, decode_manifest
from penstock.protocol.ids import CheckpointId
from penstock.protocol.layout import MANIFESTS, manifest_path, read_manifest_path, read_retired_path
from penstock.protocol.manifest import FORMAT_VERSION, Manifest
from penstock.store.base import Store

_TRIES = 5
"""Between listing and reading a checkpoint may expire; a second look is nearly always enough."""


def checkpoint_ids(store: Store) -> list[CheckpointId]:
    paths = [entry.path for entry in store.list(MANIFESTS)]
    retired = set(map(read_retired_path, paths))
    found = map(read_manifest_path, paths)
    return sorted(checkpoint for checkpoint in found if checkpoint is not None and checkpoint not in retired)


def newest_manifest(store: Store) -> Manifest:
    """Raises: `NoSuchCheckpoint`, `CorruptFile`, `FormatTooNew`."""
    for last_try in (*[False] * (_TRIES - 1), True):
        ids = checkpoint_ids(store)
        if not ids:
            raise NoSuchCheckpoint(
                f"{store.url} holds no checkpoint",
                cause="the folder is not a Penstock checkpoint, or its query never started",
                next_step="name the folder that was given as checkpoint=",
            )
        try:
            return read_manifest(store, ids[-1])
        except NoSuchCheckpoint:
            if last_try:
                raise
    raise AssertionError("the last try returns or raises")


def read_manifest(store: Store, checkpoint: CheckpointId) -> Manifest:
    """Raises: `NoSuchCheckpoint`, `CorruptFile`, `FormatTooNew`."""
    path = manifest_path(checkpoint)
    try:
        data = store.read(path)
    except MissingFile:
        raise _no_such(store, checkpoint) from None
    match decode_manifest(data):
        case Manifest() as manifest:
            if manifest.checkpoint == checkpoint:
                return manifest
            why = f"it is the manifest of checkpoint {manifest.checkpoint}"
        case TooNew(version):
            raise FormatTooNew(
                f"{path} in {store.url} has format {version}, this library reads up to {FORMAT_VERSION}",
                cause="the checkpoint was written by a newer Penstock",
                next_step="upgrade Penstock, or look at an older checkpoint",
                path=path,
            )
        case UnreadableManifest(why):
            pass
        case never:
            assert_never(never)
    raise CorruptFile(
        f"{path} in {store.url}: {why}",
        cause="the file was damaged or edited after it was written",
        next_step="look at another checkpoint: " + ", ".join(map(str, checkpoint_ids(store)[-3:])),
        path=path,
    )


def _no_such(store: Store, checkpoint: CheckpointId) -> NoSuchCheckpoint:
    ids = checkpoint_ids(store)
    there = f"it holds {ids[0]} to {ids[-1]}" if ids else "it holds none"
    return NoSuchCheckpoint(
        f"checkpoint {checkpoint} is not in {store.url}; {there}",
        cause="it was never published, or expired: a query keeps the newest `retain` checkpoints",
        next_step="choose one that is there, or leave the checkpoint out for the newest",
    )
