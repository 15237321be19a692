"""The decision to take over a folder, in every small world of facts (C9).

What became of the folder in many steps of several drivers is explored by `tests/sim/test_small_world.py`; here every
single decision is looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec
import pytest

from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.manifest import Manifest, PipelineShape, SinkState, SourcePosition
from penstock.protocol.recover import first_manifest
from penstock.protocol.takeover import (
    OVERTAKEN_MAX,
    Claim,
    Decision,
    Done,
    Expired,
    GiveUp,
    Ids,
    Look,
    LookAgain,
    NotReadable,
    Publish,
    Replaced,
    Stands,
    Undo,
    Unfollowable,
    Wish,
    decide,
    reconsider,
)

SHAPE = PipelineShape(sources={}, operators={}, edges={}, sinks=("t",))
NEW = first_manifest(identity="ours", library="", max_parallelism=8, shape=SHAPE, created_at="")
GENERATION = Generation(3)
TOLD = {"t": SinkState(committed=1)}
RESTORES = (None, CheckpointId(1), "elsewhere")
DAMAGED = ValueError("damaged")


def ids(*numbers: int) -> Ids:
    return tuple(CheckpointId(number) for number in numbers)


def manifest(checkpoint: int, generation: int = 1, identity: str = "ours") -> Manifest:
    """Each says in its sinks and source which one it is."""
    return msgspec.structs.replace(
        NEW,
        identity=identity,
        checkpoint=checkpoint,
        generation=generation,
        source=SourcePosition(batch_id=checkpoint),
        sinks={"t": SinkState(committed=checkpoint)},
    )


def wish(restore: CheckpointId | str | None = None) -> Wish:
    return Wish(SHAPE, {}, library="lib", restore=restore)


@dataclass(frozen=True)
class World:
    """Everything that a driver knows when it decides."""

    claim: Claim
    look: Look
    mine: Manifest | None
    overtaken: int

    @property
    def decision(self) -> Decision:
        return decide(self.claim, self.look, self.mine, self.overtaken)


def looks() -> Iterator[Look]:
    """An empty folder; a newest checkpoint of any driver and any query; one that cannot be read."""
    yield Look((), None, "now")
    for held in (ids(1), ids(1, 2), ids(2, 3), ids(1, 4)):
        for generation, identity in itertools.product((1, 2, 3, 4), ("ours", "another")):
            yield Look(held, manifest(held[-1], generation, identity), "now")
        for superseded in (False, True):
            yield Look(held, NotReadable(superseded, DAMAGED), "now")


def worlds() -> list[World]:
    claims = [
        Claim(wish(restore), GENERATION, held, base, TOLD)
        for restore, held in itertools.product(RESTORES, ((), ids(1), ids(1, 2)))
        for base in ((NEW,) if not held else (manifest(1), manifest(held[-1])))
    ]
    own = (None, *(manifest(checkpoint, GENERATION) for checkpoint in (1, 2, 3)))
    times = (0, OVERTAKEN_MAX - 1, OVERTAKEN_MAX)
    return [World(*facts) for facts in itertools.product(claims, looks(), own, times)]


WORLDS = worlds()


def published() -> Iterator[tuple[World, Manifest]]:
    for world in WORLDS:
        match world.decision:
            case Publish(made):
                yield world, made


def test_every_decision_is_made_in_some_world() -> None:
    kinds = {type(world.decision) for world in WORLDS}
    assert kinds == {Publish, Done, Undo, LookAgain, Replaced, Unfollowable, GiveUp}


# -- before the takeover -----------------------------------------------------------------------------------------------


def test_a_takeover_gets_the_id_after_the_highest_in_the_folder_and_the_generation_that_was_claimed() -> None:
    for world, made in published():
        assert made.checkpoint == max(world.look.ids, default=world.claim.parent.checkpoint) + 1
        assert made.generation == GENERATION


def test_no_driver_takes_over_from_one_that_claimed_later() -> None:
    for world, _ in published():
        assert not isinstance(world.look.newest, Manifest) or world.look.newest.generation <= GENERATION


def test_no_driver_takes_over_another_query() -> None:
    for world, made in published():
        assert made.identity == world.claim.parent.identity
        assert not isinstance(world.look.newest, Manifest) or world.look.newest.identity == made.identity


def test_a_driver_that_was_overtaken_goes_on_from_the_newest_checkpoint_and_its_sinks() -> None:
    for world, made in published():
        newest = world.look.newest
        if isinstance(newest, Manifest) and not world.claim.wish.goes_back and newest != world.claim.parent:
            assert (made.parent, made.source, made.sinks) == (newest.checkpoint, newest.source, newest.sinks)


def test_a_driver_that_was_not_overtaken_remembers_what_the_tables_told() -> None:
    told = [made for world, made in published() if world.look.newest in (None, world.claim.parent)]
    assert told
    assert all(made.sinks == TOLD for made in told)


def test_a_driver_that_goes_back_takes_over_only_in_the_folder_that_it_looked_at() -> None:
    back = [(world, made) for world, made in published() if world.claim.wish.goes_back]
    assert back
    for world, made in back:
        assert world.look.ids == world.claim.ids
        assert made.source.batch_id == world.claim.parent.source.batch_id
        assert made.source.rewind == (world.claim.parent.checkpoint != max(world.look.ids, default=0))


def test_only_a_leader_that_goes_back_follows_a_checkpoint_that_cannot_be_read() -> None:
    behind = [world for world, _ in published() if isinstance(world.look.newest, NotReadable)]
    assert behind
    for world in behind:
        assert isinstance(world.look.newest, NotReadable)
        assert world.claim.wish.goes_back
        assert not world.look.newest.superseded


def test_other_starts_stop_with_the_error_of_a_checkpoint_that_cannot_be_read() -> None:
    stopped = [
        world.decision
        for world in WORLDS
        if isinstance(world.look.newest, NotReadable) and not (world.mine is None and world.claim.wish.goes_back)
    ]
    assert set(stopped) == {Unfollowable(DAMAGED)}


def test_a_driver_that_is_overtaken_too_often_gives_up_instead_of_trying_again() -> None:
    """A driver whose takeover is published is not there yet: it first learns whether it is done."""
    for world in WORLDS:
        gives_up = isinstance(world.decision, GiveUp)
        assert not gives_up or (world.overtaken >= OVERTAKEN_MAX and world.mine is None)
        if world.overtaken >= OVERTAKEN_MAX and world.mine is None:
            assert gives_up or isinstance(world.decision, Replaced | Unfollowable)


def test_how_often_a_driver_was_overtaken_changes_nothing_until_it_gives_up() -> None:
    for world in WORLDS:
        if world.overtaken < OVERTAKEN_MAX:
            assert world.decision == replace(world, overtaken=0).decision


# -- after the takeover ------------------------------------------------------------------------------------------------


def test_a_driver_begins_only_with_its_own_takeover_and_only_while_it_is_the_newest_checkpoint() -> None:
    done = [world for world in WORLDS if isinstance(world.decision, Done)]
    assert done
    for world in done:
        assert world.mine is not None
        assert world.decision == Done(world.mine)
        assert world.look.newest == world.mine


def test_a_driver_whose_takeover_is_the_newest_checkpoint_begins() -> None:
    seen = [world for world in WORLDS if world.mine is not None and world.look.newest == world.mine]
    assert seen
    assert all(world.decision == Done(world.mine) for world in seen if world.mine is not None)


def test_a_driver_undoes_nothing_but_its_own_takeover() -> None:
    for world in WORLDS:
        match world.decision:
            case Undo(checkpoint):
                assert world.mine is not None
                assert checkpoint == world.mine.checkpoint


def test_a_takeover_is_undone_exactly_when_the_newest_checkpoint_is_an_older_driver_s() -> None:
    """A newer driver may have begun with it; only that driver can tell."""
    for world in WORLDS:
        newest = world.look.newest
        older = world.mine is not None and isinstance(newest, Manifest) and newest.generation < GENERATION
        assert isinstance(world.decision, Undo) == older


def test_nothing_is_published_a_second_time_before_the_first_takeover_is_undone() -> None:
    assert all(world.mine is None for world, _ in published())


def test_a_driver_that_finds_a_newer_one_stops_and_names_it() -> None:
    for world in WORLDS:
        newest = world.look.newest
        if isinstance(newest, Manifest) and newest.generation > GENERATION:
            assert world.decision == Replaced(newest.generation, newest.checkpoint)


def test_a_folder_that_was_emptied_is_looked_at_again() -> None:
    emptied = [world.decision for world in WORLDS if world.mine is not None and world.look.newest is None]
    assert {type(decision) for decision in emptied} == {LookAgain}


# -- before the claim --------------------------------------------------------------------------------------------------

FOLDERS = [(), ids(1), ids(1, 2), ids(2)]


@pytest.mark.parametrize("before", FOLDERS)
@pytest.mark.parametrize("now", FOLDERS)
def test_a_table_that_does_not_fit_is_asked_again_if_the_folder_changed_meanwhile(before: Ids, now: Ids) -> None:
    assert isinstance(reconsider(wish(), before, now, 0), Stands if before == now else LookAgain)


@pytest.mark.parametrize("before", FOLDERS)
@pytest.mark.parametrize("now", FOLDERS)
def test_a_table_that_does_not_fit_a_named_checkpoint_is_not_asked_again(before: Ids, now: Ids) -> None:
    """While the running driver goes on, it is always ahead."""
    assert reconsider(wish(CheckpointId(1)), before, now, 0) == (Stands() if 1 in now else Expired(CheckpointId(1)))
    assert reconsider(wish("elsewhere"), before, now, 0) == Stands()


def test_a_folder_that_changes_again_and_again_is_given_up() -> None:
    assert isinstance(reconsider(wish(), ids(1), ids(2), OVERTAKEN_MAX - 1), LookAgain)
    assert reconsider(wish(), ids(1), ids(2), OVERTAKEN_MAX) == GiveUp(OVERTAKEN_MAX)
    assert reconsider(wish(), ids(1), ids(1), OVERTAKEN_MAX) == Stands()


# -- facts that cannot be ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "newest"), [((), manifest(1)), (ids(1), None), (ids(1, 2), manifest(1)), ((), NotReadable(False, DAMAGED))]
)
def test_a_look_whose_newest_checkpoint_is_not_the_last_of_its_ids_cannot_be_made(
    held: Ids, newest: Manifest | NotReadable | None
) -> None:
    with pytest.raises(AssertionError):
        Look(held, newest, "now")
