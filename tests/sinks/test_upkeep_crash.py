"""Upkeep dies, or somebody else commits, between any two of its changes: the table holds each row once."""

from __future__ import annotations

import os
import random
import shutil
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.sinks.paimon.sink import Paimon
from penstock.sinks.upkeep import Upkeep
from tests.support.second_reader import root_of
from tests.support.seeds import FRESH, drawn
from tests.support.tables import SCHEMA, every_file
from tests.support.upkeep_tables import EAGER, Crash, Steps, Story, newest_commit, steps

__all__ = ["steps"]

COMMITS = 2


ACTIONS = {
    "merge": replace(EAGER, small_files=None, expire=False),
    "compact": replace(EAGER, manifests=None, expire=False),
    "expire": replace(EAGER, manifests=None, small_files=None),
    "all": EAGER,
}


class World:
    """Any number of copies of one table with a short history."""

    def __init__(self, folder: Path, steps: Steps) -> None:
        self._folder, self._steps = folder, steps
        self._count = 0
        first = Story(Paimon(str(folder / "0" / "lake"), "shop.words"))
        first.commit(COMMITS)

    def fresh(self) -> Story:
        self._steps.off()
        self._count += 1
        folder = self._folder / str(self._count)
        shutil.copytree(self._folder / "0", folder)
        story = Story(Paimon(str(folder / "lake"), "shop.words"))
        newest_commit(story.committer)
        story.checkpoint = COMMITS
        return story

    def changes(self, policy: Upkeep) -> list[str]:
        """The changes that an undisturbed step makes."""
        story = self.fresh()
        assert story.keeper(policy).step().did_something
        return self._steps.names


@pytest.fixture
def world(tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no power is cut here
    Paimon(str(tmp_path / "0" / "lake"), "shop.words").check(SCHEMA)
    return World(tmp_path, steps)


def test_the_changes_of_a_step_are_all_kinds_of_changes(world: World) -> None:
    """Else the tests below would leave some of them out."""
    assert set(world.changes(EAGER)) == {name for _, name in Steps.CHANGES}


def test_a_crash_between_any_two_changes_leaves_each_row_once(world: World, steps: Steps) -> None:
    """C10: the next upkeep goes on, the next commit arrives, and what is left over is found."""
    for number in range(len(world.changes(EAGER))):
        story = world.fresh()
        steps.crash_at(number)
        with pytest.raises(Crash):
            story.keeper().step()
        steps.off()
        story.assert_whole()
        story.commit()
        story.keeper().step()
        remove_orphans(story)
        story.assert_whole()


def test_a_disk_that_refuses_any_one_change_leaves_no_new_files(world: World, steps: Steps) -> None:
    """A full disk must not be filled further by every try."""
    for number, name in enumerate(world.changes(EAGER)):
        if name in {"unlink", "replace"}:  # these free space, or are only hints
            continue
        story = world.fresh()
        steps.refuse_at(number)
        assert "No space left" in "".join(story.keeper().step().failures), name
        steps.off()
        story.assert_whole()
        assert remove_orphans(story) == 0, name


def test_a_commit_between_any_two_changes_arrives_once(world: World, steps: Steps) -> None:
    """C4, C10: commits and upkeep publish snapshots of the same number; each finds its place."""
    for number in range(len(world.changes(EAGER))):
        story = world.fresh()
        steps.run_at(number, story.commit)
        story.keeper().step()
        steps.off()
        assert story.checkpoint == COMMITS + 1
        story.commit()
        story.keeper().step()
        story.assert_whole()


def test_two_upkeeps_at_once_change_nothing_about_the_rows(world: World, steps: Steps) -> None:
    """The command runs while the query keeps its own table: one overtakes the other."""
    for number in range(0, len(world.changes(EAGER)), 2):
        story = world.fresh()
        other = story.keeper()
        steps.run_at(number, lambda other=other: other.step())  # type: ignore[misc]
        story.keeper().step()  # may fail: its files may have been compacted and expired under its hands
        story.commit()
        story.keeper().step()
        story.assert_whole()


@pytest.mark.parametrize("seed", [1, 2, FRESH])
def test_random_commits_crashes_and_upkeep_end_with_each_row_once(seed: int | None, world: World, steps: Steps) -> None:
    chance = random.Random(drawn(seed))
    story = world.fresh()
    for _ in range(10):
        policy = chance.choice(list(ACTIONS.values()))
        keeper = story.keeper(policy)
        match chance.randrange(4):
            case 0:
                story.commit(chance.randrange(1, 4))
            case 1:
                steps.crash_at(chance.randrange(60))
            case 2:
                steps.run_at(chance.randrange(20), story.commit)
            case _:
                pass
        with suppress(Crash):
            keeper.step()
        steps.off()
        story.assert_whole()
    remove_orphans(story)
    story.assert_whole()


def remove_orphans(story: Story) -> int:
    """Lets two hours pass and removes what nobody names; afterwards nothing of that kind is there."""
    policy = Upkeep(manifests=None, small_files=None, expire=False, orphans_after="1 h")
    later = time.time() + 7200
    removed = story.keeper(policy, clock=lambda: later).step().orphans_removed
    before = every_file(story.sink)
    assert story.keeper(policy, clock=lambda: later).step().orphans_removed == 0
    assert every_file(story.sink) == before
    assert not list((root_of(story.sink) / "snapshot").glob(".*.tmp"))
    return removed
