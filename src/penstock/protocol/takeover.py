"""Taking over a checkpoint folder: what a driver that starts does next, from what it sees there.

A driver looks at the folder and at the tables, claims a generation, and publishes a *takeover*: the checkpoint that it
goes on from, under the next id. Other drivers may run, start or stop meanwhile, so it looks before that and after it.

- A takeover gets the id after the highest one in the folder, and generations ascend with ids.
- A driver begins only when it has seen that its takeover is the newest checkpoint.
- It deletes nothing but its own takeover, and only while the newest checkpoint is that of an older driver.
- It gives up when others were faster `OVERTAKEN_MAX` times.

The engine (`engine/takeover.py`) and the exhaustive small worlds (`tests/sim/small_world.py`) both ask these functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from penstock.protocol.ids import CheckpointId, Generation, next_checkpoint, next_generation
from penstock.protocol.manifest import FORMAT_VERSION, Manifest, PipelineShape, SinkState
from penstock.protocol.order import with_rescaled
from penstock.protocol.parallelism import Bounds, first_parallelism

OVERTAKEN_MAX = 100
"""A running driver overtakes a starting one once or twice before it learns that it was replaced. So many times means
that drivers are started again and again, which does not end by itself."""

Ids: TypeAlias = tuple[CheckpointId, ...]


# -- facts -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wish:
    """What a start asks for."""

    shape: PipelineShape
    parallelism: Mapping[str, int]
    library: str
    autoscale: Bounds | None = None
    restore: CheckpointId | str | None = None
    """A checkpoint of this folder, the place of another folder, or None for the newest checkpoint."""

    @property
    def goes_back(self) -> bool:
        """Whether a checkpoint of this folder is named, which need not be the newest."""
        return isinstance(self.restore, int)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a driver knows when it has claimed its generation; the folder may have changed since."""

    wish: Wish
    generation: Generation
    ids: Ids
    """The checkpoints in the folder before anything else was looked at."""
    parent: Manifest
    """The checkpoint to go on from."""
    told: Mapping[str, SinkState]
    """What the tables told about the sinks of `parent`."""
    read: Manifest | None = None
    """The checkpoint as it lies in the folder, where a changed pipeline makes another `parent` of it."""


@dataclass(frozen=True, slots=True)
class NotReadable:
    """A newest checkpoint that is damaged, or written by a newer Penstock; `error` is what the user is told."""

    superseded: bool
    """A newer driver has claimed a generation: it may have written this, and still run."""
    error: Exception


@dataclass(frozen=True, slots=True)
class Look:
    """The folder at one moment."""

    ids: Ids
    newest: Manifest | NotReadable | None
    at: str

    def __post_init__(self) -> None:
        assert (self.newest is None) == (not self.ids)
        assert not isinstance(self.newest, Manifest) or self.newest.checkpoint == self.ids[-1]


# -- decisions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish this takeover, then look again."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Done:
    """The folder is this driver's; it begins with this takeover."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Undo:
    """Delete the driver's own takeover, then look again."""

    checkpoint: CheckpointId
    why: str


@dataclass(frozen=True, slots=True)
class LookAgain:
    """What the driver read is out of date: look at everything again, tables included, and claim again."""

    why: str


@dataclass(frozen=True, slots=True)
class Replaced:
    """A newer driver owns the folder: stop. It published `checkpoint`; None when it has only claimed."""

    generation: Generation
    checkpoint: CheckpointId | None


@dataclass(frozen=True, slots=True)
class Unfollowable:
    """The newest checkpoint cannot be read, so nothing can go on from it: stop with the error of reading it."""

    error: Exception


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Other drivers were faster too often: stop."""

    times: int


@dataclass(frozen=True, slots=True)
class Expired:
    """The checkpoint to go back to was retired meanwhile: stop, and say that."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Stands:
    """The folder did not change: stop with the error that was met."""


Refusal: TypeAlias = Replaced | Unfollowable | GiveUp
Decision: TypeAlias = Publish | Done | Undo | LookAgain | Refusal
Reconsidered: TypeAlias = LookAgain | Expired | Stands | GiveUp


def reconsider(wish: Wish, before: Ids, now: Ids, overtaken: int) -> Reconsidered:
    """Before the claim, a table or a file did not fit the checkpoint that was read. Is that checkpoint out of date?

    A driver that goes back on purpose does not look again: while the running driver goes on, the table is always ahead.
    """
    if wish.restore is None and now != before:
        if overtaken >= OVERTAKEN_MAX:
            return GiveUp(overtaken)
        return LookAgain("the running driver published or retired checkpoints")
    if isinstance(wish.restore, int) and wish.restore not in now:
        return Expired(wish.restore)
    return Stands()


def decide(claim: Claim, look: Look, mine: Manifest | None, overtaken: int) -> Decision:
    """The next action of a driver that claimed a generation. `mine` is its takeover, once it is published."""
    if mine is not None:
        return _confirm(look.newest, mine)
    match look.newest:
        case NotReadable(_, error) if not claim.wish.goes_back:
            return Unfollowable(error)
        case NotReadable(superseded=True):
            return Replaced(next_generation(claim.generation), None)
        case Manifest() as newest if outranks(newest, claim.generation):
            return Replaced(newest.generation, newest.checkpoint)
        case _:
            pass
    if overtaken >= OVERTAKEN_MAX:
        return GiveUp(overtaken)
    outdated = _why_outdated(claim, look)
    return Publish(_takeover(claim, look)) if outdated is None else LookAgain(outdated)


def _why_outdated(claim: Claim, look: Look) -> str | None:
    if isinstance(look.newest, Manifest) and look.newest.identity != claim.parent.identity:
        return "another query began in this folder"
    if claim.wish.goes_back and look.ids != claim.ids:
        # The tables may hold more by now than the named checkpoint knows of; or it was retired.
        return "another driver published or retired checkpoints"
    if _went_on(claim, look) and claim.read is not None:
        return "the running driver went on, with the pipeline as it was before"
    return None


def _confirm(newest: Manifest | NotReadable | None, mine: Manifest) -> Decision:
    """Whether the driver may begin: retention may have freed the takeover's name while the driver looked."""
    match newest:
        case None:
            return LookAgain("all checkpoints are gone")
        case NotReadable(_, error):
            return Unfollowable(error)
        case _ if _named(newest) == _named(mine):
            return Done(mine)
        case _ if newest.generation < mine.generation:
            # The older driver published that id and more, and its retention freed the name.
            return Undo(mine.checkpoint, f"an older driver is at checkpoint {newest.checkpoint} already")
        case _:
            # Only that driver knows whether it began with `mine`; its collector retires what it did not use.
            return Replaced(newest.generation, newest.checkpoint)


def _named(manifest: Manifest) -> tuple[str, CheckpointId, Generation]:
    """What only one driver can have published."""
    return manifest.identity, manifest.checkpoint, manifest.generation


def outranks(newest: Manifest, generation: Generation) -> bool:
    """Generations in manifests ascend: a driver that claimed earlier has lost, though the next id would be free."""
    return newest.generation > generation


def _went_on(claim: Claim, look: Look) -> bool:
    """Whether the newest checkpoint is not the one that was read.

    With a place, the folder was empty before: a rival has done the same restore, and this driver is the newer one.
    """
    return (
        isinstance(look.newest, Manifest) and not claim.wish.goes_back and look.newest != (claim.read or claim.parent)
    )


def _takeover(claim: Claim, look: Look) -> Manifest:
    parent, sinks = claim.parent, {**claim.parent.sinks, **claim.told}
    if _went_on(claim, look) and isinstance(look.newest, Manifest):
        parent, sinks = look.newest, look.newest.sinks
    return takeover_manifest(
        msgspec.structs.replace(parent, sinks=sinks),
        newest=look.ids[-1] if look.ids else parent.checkpoint,
        generation=claim.generation,
        shape=claim.parent.shape,
        parallelism=first_parallelism(claim.wish.parallelism, parent.parallelism, claim.wish.autoscale),
        library=claim.wish.library,
        created_at=look.at,
    )


def takeover_manifest(
    parent: Manifest,
    *,
    newest: CheckpointId,
    generation: Generation,
    shape: PipelineShape,
    parallelism: Mapping[str, int],
    library: str,
    created_at: str,
) -> Manifest:
    """The first checkpoint of a new driver: the same content under its generation, for a pipeline that fits.

    Publishing it takes the next id, so an older driver that still runs can publish nothing more: its next manifest
    would need the same name. `newest` differs from `parent` when an older checkpoint is restored; the source is
    then ahead and has to be rewound, which the manifest remembers until the next micro-batch is ingested.
    """
    assert parent.edges.keys() == shape.edges.keys(), "the content is of a pipeline with other edges"
    rewind = parent.source.rewind or parent.checkpoint != newest
    return msgspec.structs.replace(
        parent,
        format=FORMAT_VERSION,
        library=library,
        source=msgspec.structs.replace(parent.source, rewind=rewind),
        checkpoint=next_checkpoint(newest),
        parent=parent.checkpoint or None,
        generation=generation,
        shape=shape,
        parallelism=dict(parallelism),
        stages=with_rescaled(parent, parallelism, next_checkpoint(newest)),
        created_at=created_at,
    )
