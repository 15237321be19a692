"""Manifests and generations in the checkpoint directory. Creating a name that does not exist is the only atomic step:
it publishes a checkpoint, and it fences off an older driver."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from penstock.errors import CorruptFile, Fenced, FormatTooNew, MissingFile, NoSuchCheckpoint, PenstockError
from penstock.protocol.codec import TooNew, UnreadableManifest, decode_manifest, encode_manifest
from penstock.protocol.ids import NO_GENERATION, CheckpointId, Generation, next_generation
from penstock.protocol.layout import (
    DATA_FOLDERS,
    GENERATIONS,
    MANIFESTS,
    SEGMENTS,
    generation_path,
    manifest_path,
    read_generation_path,
    read_manifest_path,
    read_retired_path,
    retired_path,
    top_of,
)
from penstock.protocol.manifest import FORMAT_VERSION, Manifest
from penstock.store.base import AlreadyExists, Store


class Driver(msgspec.Struct, frozen=True):
    """The process that runs a generation, for people to read."""

    host: str
    pid: int
    started_at: str
    library: str


class Checkpoints:
    """The checkpoints of one query."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def ids(self) -> list[CheckpointId]:
        paths = self._paths(MANIFESTS)
        retired = set(map(read_retired_path, paths))
        found = map(read_manifest_path, paths)
        return sorted(checkpoint for checkpoint in found if checkpoint is not None and checkpoint not in retired)

    def holds(self, checkpoint: CheckpointId) -> bool:
        return self.store.exists(manifest_path(checkpoint)) and not self.store.exists(retired_path(checkpoint))

    def newest(self) -> Manifest | None:
        """Raises: as `read`."""
        match self.look()[1]:
            case PenstockError() as error:
                raise error
            case newest:
                return newest

    def look(self) -> tuple[list[CheckpointId], Manifest | CorruptFile | FormatTooNew | None]:
        """All checkpoints, and the one with the highest id or why it cannot be read; both as of one moment.

        Raises: `NoSuchCheckpoint`.
        """
        while ids := self.ids():
            try:
                return ids, self.read(ids[-1])
            except (CorruptFile, FormatTooNew) as error:
                return ids, error
            except NoSuchCheckpoint:
                if self.ids() == ids:
                    raise
                # A newer driver went on and retired it between the two calls.
        return [], None

    def retained(self) -> list[Manifest]:
        """All checkpoints that can be gone back to. A query that runs retires some of them meanwhile, which are left
        out; none are left only where there are none.

        Raises: as `read`.
        """
        while ids := self.ids():
            found = []
            for checkpoint in ids:
                try:
                    found.append(self.read(checkpoint))
                except NoSuchCheckpoint:
                    if self.holds(checkpoint):
                        raise
            if found:
                return found
        return []

    def read(self, checkpoint: CheckpointId) -> Manifest:
        """Raises: `NoSuchCheckpoint`, `CorruptFile`, `FormatTooNew`."""
        path = manifest_path(checkpoint)
        try:
            data = self.store.read(path)
        except MissingFile:
            raise self.no_such(checkpoint) from None
        match decode_manifest(data):
            case Manifest() as manifest:
                if manifest.checkpoint != checkpoint:
                    # A driver that follows it would look for a name that is taken, for ever.
                    raise CorruptFile(
                        f"{path} in {self.store.url} is the manifest of checkpoint {manifest.checkpoint}",
                        cause="the file was copied or renamed",
                        next_step=f"delete it if you made it; or go back to another one: {self._others(checkpoint)}",
                        path=path,
                    )
                return manifest
            case TooNew(version):
                raise FormatTooNew(
                    f"{path} in {self.store.url} has format {version}, this library reads up to {FORMAT_VERSION}",
                    cause="the checkpoint was written by a newer Penstock",
                    next_step="upgrade Penstock, or restore an older checkpoint with restore=N",
                    path=path,
                )
            case UnreadableManifest(why):
                raise CorruptFile(
                    f"{path} in {self.store.url}: {why}",
                    cause="the file was damaged or edited after it was written",
                    next_step=f"restore it from a copy, or go back to an older checkpoint: {self._others(checkpoint)}",
                    path=path,
                )

    def restorable(self, checkpoint: CheckpointId) -> Manifest:
        """Raises: as `read`; a retired manifest is no checkpoint any more."""
        if checkpoint not in self.ids():
            raise self.no_such(checkpoint)
        return self.read(checkpoint)

    def mark_retired(self, checkpoint: CheckpointId) -> None:
        """Marks a manifest as no checkpoint any more. Its name stays taken."""
        with suppress(AlreadyExists):
            self.store.create(retired_path(checkpoint), b"")

    def publish(self, manifest: Manifest) -> int:
        """Publishes a checkpoint; returns its size in bytes. An id can be published only once.

        Raises: `Fenced` when another driver was first.
        """
        data = encode_manifest(manifest)
        path = manifest_path(manifest.checkpoint)
        try:
            self.store.create(path, data)
        except AlreadyExists:
            if self.store.read(path) != data:
                theirs = self.read(manifest.checkpoint)
                raise fenced(theirs.generation, theirs.checkpoint, ours=manifest.generation) from None
        return len(data)

    def claim_generation(self, driver: Driver, above: Generation = NO_GENERATION) -> Generation:
        """Takes the next free generation, `above` that of a checkpoint from elsewhere; lower ones have lost."""
        claimed = map(read_generation_path, self._paths(GENERATIONS))
        generation = next_generation(max(above, *(number for number in claimed if number is not None), NO_GENERATION))
        while True:
            try:
                self.store.create(generation_path(generation), msgspec.json.encode(driver))
            except AlreadyExists:
                generation = next_generation(generation)
            else:
                return generation

    def superseded(self, generation: Generation) -> bool:
        return self.store.exists(generation_path(next_generation(generation)))

    def require_leader(self, generation: Generation) -> None:
        """Raises: `Fenced` when a newer driver claimed a generation."""
        if self.superseded(generation):
            raise fenced(next_generation(generation), ours=generation)

    def owners(self) -> dict[CheckpointId, Generation]:
        """Who published each checkpoint that is there and can be read.

        Generations ascend: a manifest that is newer than a later one is a takeover under a name that retention had
        freed, by a driver that died before it took it back. It says nothing about who published that checkpoint.
        """
        found: dict[CheckpointId, Generation] = {}
        highest = None
        for checkpoint in reversed(self.ids()):
            with suppress(CorruptFile, FormatTooNew, NoSuchCheckpoint):
                generation = self.read(checkpoint).generation
                if highest is None or generation <= highest:
                    found[checkpoint] = highest = generation
        return found

    def verify_files(self, manifest: Manifest) -> None:
        """Checks that every file of a checkpoint is there with its size; its bytes are checked when they are read.

        Raises: `MissingFile`, `CorruptFile`.
        """
        sizes = {entry.path: entry.bytes for folder in DATA_FOLDERS for entry in self.store.list(folder)}
        for file in manifest.entries():
            found = sizes.get(file.path)
            if found == file.bytes:
                continue
            where = f"{file.path} in {self.store.url}, needed by checkpoint {manifest.checkpoint},"
            if found is None and self.store.exists(file.path):
                continue
            if found is None:
                raise MissingFile(
                    f"{where} does not exist",
                    cause="it was deleted by hand",
                    next_step=self._advice(manifest, file.path),
                    path=file.path,
                )
            raise CorruptFile(
                f"{where} has {found} bytes, {file.bytes} were written",
                cause="the file was truncated or edited after it was written",
                next_step=self._advice(manifest, file.path),
                path=file.path,
            )

    def _advice(self, manifest: Manifest, path: str) -> str:
        advice = f"restore it from a copy, or an older checkpoint: {self._others(manifest.checkpoint)}"
        if top_of(path) == SEGMENTS:
            advice += f"; to go on without its records: restore={manifest.checkpoint}, drop_in_flight=[…]"
        return advice

    def _paths(self, folder: str) -> list[str]:
        return [entry.path for entry in self.store.list(folder)]

    def _others(self, checkpoint: CheckpointId) -> str:
        others = [number for number in self.ids() if number != checkpoint]
        return "restore=" + " or ".join(map(str, others[-3:])) if others else "there is no other one"

    def no_such(self, checkpoint: CheckpointId) -> NoSuchCheckpoint:
        ids = self.ids()
        there = f"it holds {ids[0]} to {ids[-1]}" if ids else "it holds none"
        return NoSuchCheckpoint(
            f"checkpoint {checkpoint} is not in {self.store.url}; {there}",
            cause="it was never published, or expired (option retain)",
            next_step="choose one that is there, or leave restore out for the newest",
        )


def fenced(newer: Generation, checkpoint: CheckpointId | None = None, *, ours: Generation) -> Fenced:
    """The error of a driver that was replaced: a newer one published `checkpoint`, or has only claimed a generation."""
    if checkpoint is None:
        seen = f"generation {newer} was claimed"
    else:
        seen = f"checkpoint {checkpoint} was published by generation {newer}"
    return Fenced(
        f"{seen}; this driver is generation {ours}",
        cause="a second driver was started on the same checkpoint folder",
        next_step="let the newer one run; this one has stopped and changed nothing more",
        generation=ours,
        newer_generation=newer,
    )
