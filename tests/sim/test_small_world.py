"""All interleavings of two drivers, with a crash at each step: nothing is lost, nothing is doubled, one goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from penstock.protocol import takeover
from penstock.protocol.commit import with_pending
from penstock.protocol.ids import CheckpointId
from penstock.protocol.manifest import Manifest, SinkState
from penstock.protocol.takeover import OVERTAKEN_MAX, Claim, Done, Look
from tests.sim.small_world import Driver, Published, Rules, World, explore, rows, wrong

NEW = World((Driver(), Driver()))
LEFT = World(
    (Driver(), Driver()),
    generations=1,
    manifests=(
        Published(1, 1, "left", None, SinkState(), is_takeover=True),
        Published(2, 1, "left", 0, with_pending(SinkState(), CheckpointId(2), rows(1, 0)), is_takeover=False),
    ),
)
"""A driver crashed when it had published one checkpoint with rows, and committed nothing."""


def problems(world: World, rules: Rules) -> Iterator[str]:
    return (problem for end in explore(world, rules) if (problem := wrong(end, rules)) is not None)


def ends(world: World, rules: Rules, driver: int = -1) -> set[str]:
    """How one driver ends, in any order."""
    return {end.drivers[driver].at for end in explore(world, rules)}


@pytest.mark.parametrize("start", [NEW, LEFT], ids=["new folder", "folder that was left"])
def test_two_drivers_in_every_order_lose_and_double_nothing(start: World) -> None:
    """C4, C6, C9."""
    assert [*problems(start, Rules())] == []


def test_two_drivers_end_in_every_way_in_which_drivers_end() -> None:
    assert ends(NEW, Rules(batches=1), driver=0) == {"crashed", "fenced", "finished"}
    assert ends(NEW, Rules(batches=1), driver=1) == {"fenced", "finished"}


def test_of_three_drivers_that_start_at_once_one_goes_on() -> None:
    """C9: without records, so that nothing but their takeovers meets."""
    assert [*problems(World((Driver(),) * 3), Rules(batches=0))] == []


@pytest.mark.parametrize("checkpoint", [1, 2, 3])
def test_going_back_while_another_driver_runs_doubles_nothing(checkpoint: int) -> None:
    """B1, C9: it is refused, or it finishes with every row once."""
    start = World((Driver(), Driver(restore=checkpoint)))
    assert [*problems(start, Rules())] == []
    assert ends(start, Rules(batches=2)) == {"refused", "finished"}


def test_a_driver_that_gives_up_leaves_no_takeover_behind() -> None:
    """It gives up when it is overtaken once more."""
    start = World((Driver(), Driver(overtaken=OVERTAKEN_MAX - 1)))
    gave_up = [end for end in explore(start, Rules(batches=2)) if end.drivers[1].at == "gave up"]
    left_by = {(end.drivers[1].generation, manifest.generation) for end in gave_up for manifest in end.manifests}
    assert left_by
    assert all(ours != theirs for ours, theirs in left_by)


@pytest.mark.parametrize(
    "rules",
    [
        Rules(batches=2, keep_takeovers=False),
        Rules(batches=2, verify_takeover=False),
        Rules(batches=2, ask_before_commit=False),
        Rules(batches=2, exclusive_publish=False),
    ],
)
def test_without_one_of_the_rules_something_goes_wrong(rules: Rules) -> None:
    """The exploration can fail: each rule is there for a reason."""
    assert next(problems(NEW, rules), None) is not None


def never_outranked(_: Any) -> Any:
    return lambda newest, generation: False


def confirmed_unseen(_: Any) -> Any:
    def confirm(newest: object, mine: Manifest) -> Done:
        return Done(mine)

    return confirm


def of_what_was_read_first(original: Callable[[Claim, Look], Manifest]) -> Any:
    """The driver goes on from what it read before its claim, though another driver has published since."""
    return lambda claim, look: original(replace(claim, wish=replace(claim.wish, restore=0)), look)


@pytest.mark.parametrize(
    ("function", "fault"),
    [("outranks", never_outranked), ("_confirm", confirmed_unseen), ("_takeover", of_what_was_read_first)],
)
def test_a_fault_in_the_decision_itself_is_noticed(
    function: str, fault: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worlds run the code of the engine, not a model of it."""
    monkeypatch.setattr(takeover, function, fault(getattr(takeover, function)))
    assert next(problems(LEFT, Rules()), None) is not None
