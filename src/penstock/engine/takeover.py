"""Taking over a checkpoint folder: looks at it, asks `protocol.takeover` what to do, and does that.

Every look more than usual is a decision of `protocol.takeover` and is logged with its reason. It decides, too, when to
give up.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from penstock.engine.checkpoints import Checkpoints, Driver, fenced
from penstock.engine.history import utc_now
from penstock.engine.startpoint import StartPoint
from penstock.errors import (
    Fenced,
    MissingFile,
    NoSuchCheckpoint,
    Overtaken,
    PenstockError,
    TablePositionMismatch,
)
from penstock.protocol.ids import Generation
from penstock.protocol.layout import manifest_path
from penstock.protocol.manifest import Manifest, SinkState
from penstock.protocol.takeover import (
    Claim,
    Done,
    Expired,
    GiveUp,
    Ids,
    Look,
    LookAgain,
    NotReadable,
    Publish,
    Refusal,
    Replaced,
    Stands,
    Undo,
    Unfollowable,
    Wish,
    decide,
    reconsider,
)
from penstock.sinks.base import Committer

_log = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True)
class Survey:
    """What a start found before it claimed anything."""

    start: StartPoint
    committers: dict[str, Committer]
    told: dict[str, SinkState]
    """What the tables told about the sinks, to be remembered before anything more is committed."""


@dataclass(frozen=True, slots=True)
class Owned:
    """A checkpoint folder that this driver has taken over."""

    manifest: Manifest
    generation: Generation
    committers: dict[str, Committer]
    start: StartPoint


def take_over(checkpoints: Checkpoints, wish: Wish, survey: Callable[[], Survey]) -> Owned:
    """Makes the folder this driver's. `survey` looks at everything and refuses what does not fit.

    Raises: whatever `survey` raises, the folder is then as it was; `Fenced`; `Overtaken`; `CorruptFile` and
    `FormatTooNew` when the newest checkpoint cannot be read.
    """
    takeover = _Takeover(checkpoints, wish, survey)
    while (owned := takeover.round()) is None:
        pass
    return owned


class _Takeover:
    """One start. It counts how often others were faster."""

    def __init__(self, checkpoints: Checkpoints, wish: Wish, survey: Callable[[], Survey]) -> None:
        self._checkpoints, self._wish, self._survey = checkpoints, wish, survey
        self._overtaken: list[str] = []

    def round(self) -> Owned | None:
        """Looks at everything, claims, publishes; None to look at everything again."""
        ids = tuple(self._checkpoints.ids())
        found = self._surveyed(ids)
        if found is None:
            return None
        driver = Driver(socket.gethostname(), os.getpid(), utc_now(), self._wish.library)
        generation = self._checkpoints.claim_generation(driver, above=found.start.manifest.generation)
        manifest = self._published(
            Claim(self._wish, generation, ids, found.start.manifest, found.told, found.start.changed)
        )
        return None if manifest is None else Owned(manifest, generation, found.committers, found.start)

    def _surveyed(self, ids: Ids) -> Survey | None:
        try:
            return self._survey()
        except (TablePositionMismatch, MissingFile) as error:
            match reconsider(self._wish, ids, tuple(self._checkpoints.ids()), len(self._overtaken)):
                case LookAgain(why):
                    self._again(why)
                    return None
                case Expired(checkpoint):
                    raise self._checkpoints.no_such(checkpoint) from error
                case GiveUp():
                    raise self._gave_up() from error
                case Stands():
                    raise
                case decision:
                    assert_never(decision)

    def _published(self, claim: Claim) -> Manifest | None:
        mine: Manifest | None = None
        while True:
            match decide(claim, self._look(claim.generation), mine, len(self._overtaken)):
                case Publish(manifest):
                    mine = manifest if self._publish(manifest) else None
                case Undo(checkpoint, why):
                    self._checkpoints.store.delete([manifest_path(checkpoint)])
                    mine = None
                    self._again(why)
                case LookAgain(why):
                    self._again(why)
                    return None
                case Done(manifest):
                    return manifest
                case Replaced() | Unfollowable() | GiveUp() as refusal:
                    raise self._error(refusal, claim.generation)
                case decision:
                    assert_never(decision)

    def _look(self, generation: Generation) -> Look:
        ids, newest = self._checkpoints.look()
        if isinstance(newest, PenstockError):
            return Look(tuple(ids), NotReadable(self._checkpoints.superseded(generation), newest), utc_now())
        return Look(tuple(ids), newest, utc_now())

    def _publish(self, manifest: Manifest) -> bool:
        """False when another driver has the name, or had it until its retention freed it a moment ago."""
        try:
            self._checkpoints.publish(manifest)
        except (Fenced, MissingFile, NoSuchCheckpoint):
            self._again(f"another driver was first to publish checkpoint {manifest.checkpoint}")
            return False
        return True

    def _again(self, why: str) -> None:
        self._overtaken.append(why)
        _log.info("%s: looks again before it takes over: %s", self._checkpoints.store.url, why)

    def _error(self, refusal: Refusal, ours: Generation) -> Exception:
        match refusal:
            case Replaced(newer, checkpoint):
                return fenced(newer, checkpoint, ours=ours)
            case Unfollowable(error):
                return error
            case GiveUp():
                return self._gave_up()
            case _:
                assert_never(refusal)

    def _gave_up(self) -> Overtaken:
        times = len(self._overtaken)
        return Overtaken(
            f"{times} times, other drivers changed {self._checkpoints.store.url} before this one could take over;"
            f" the last time: {self._overtaken[-1]}",
            cause="several drivers are started on this folder again and again, for example by two supervisors",
            next_step="end the other drivers, then start this one again",
            times=times,
        )
