"""The hold, exhaustively over small worlds: never an overtake, never a standstill (A8).

A world is a graph of stages, each with lanes. Rows are tokens with an arrival. In every epoch each subtask moves one of
the tokens that the plan lets it read, or all of them, and the parallelism may change: all choices are gone through. The
plan itself is the real one, `protocol.plan` over values of `protocol.manifest`.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec
import pytest

from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.manifest import EdgeState, PipelineShape, Segment, Span, StageClock
from penstock.protocol.order import held_after, held_before, with_rescaled
from penstock.protocol.plan import InputFacts, plan_subtasks
from penstock.protocol.recover import first_manifest

GROUPS = 4


def segment(path: str, epoch: int, arrival: int | None = None, rows: int = 1, **more: int) -> Segment:
    return Segment(
        path=path,
        epoch=epoch,
        producer=0,
        sequence=0,
        rows=rows,
        bytes=rows,
        checksum="",
        spans=(Span(ranges=(KeyGroupRange(0, GROUPS),), cursor=0, rows_left=rows),),
        arrival=msgspec.UNSET if arrival is None else arrival,
        **more,
    )


def edge(*segments: Segment, watermark: int | None = None) -> EdgeState:
    return EdgeState(segments=segments, watermark=watermark)


def planned(part: InputFacts, parallelism: int = 1) -> list[str]:
    plans = plan_subtasks(inputs={"e": part}, state={}, parallelism=parallelism, max_parallelism=GROUPS)
    return [read.path for read in plans[0].inputs[0].reads]


def test_a_segment_arrived_in_its_epoch_unless_it_says_otherwise() -> None:
    assert segment("s", 7).arrived == 7
    assert segment("s", 7, 3).arrived == 3
    assert msgspec.json.decode(msgspec.json.encode(segment("s", 7, 3)), type=Segment) == segment("s", 7, 3)
    assert b"arrival" not in msgspec.json.encode(segment("s", 7))


def test_segments_are_read_by_arrival_then_by_epoch() -> None:
    mixed = edge(segment("c", 9, 5), segment("a", 7, 3), segment("d", 6), segment("b", 9, 3))
    assert planned(InputFacts(mixed)) == ["a", "b", "c", "d"]


def test_what_arrived_later_than_something_upstream_is_held() -> None:
    mixed = edge(segment("a", 4, 2), segment("b", 4, 3), segment("c", 4))
    edges = {"up": edge(segment("u", 3)), "other": edge(segment("o", 1)), "none": edge()}
    assert held_after(edges, ("up", "none")) == 3
    assert held_after(edges, ("none",)) is None
    assert planned(InputFacts(mixed, after=3)) == ["a", "b"]


def test_a_subtask_all_of_whose_rows_are_held_has_no_work_and_needs_no_time() -> None:
    (plan,) = plan_subtasks(
        inputs={"e": InputFacts(edge(segment("a", 4, rows=100)), after=3)},
        state={},
        parallelism=1,
        max_parallelism=GROUPS,
    )
    assert not plan.has_work
    assert plan.rows_in_flight == 0


@pytest.mark.parametrize(("edge_mark", "held_mark", "wanted"), [(50, 20, 20), (50, 60, 50), (None, 20, None)])
def test_rows_that_are_held_hold_the_watermark_back(edge_mark: int | None, held_mark: int, wanted: int | None) -> None:
    held = edge(segment("a", 4, watermark=held_mark), watermark=edge_mark)
    (plan,) = plan_subtasks(
        inputs={"e": InputFacts(held, timed=True, after=3)}, state={}, parallelism=1, max_parallelism=GROUPS
    )
    assert plan.watermark == wanted
    assert plan.inputs[0].watermark == wanted


def test_a_rescale_is_noted_only_while_rows_are_in_flight() -> None:
    base = first_manifest(
        identity="",
        library="",
        max_parallelism=GROUPS,
        shape=PipelineShape(sources={}, operators={}, edges={}, sinks=()),
        created_at="",
    )
    base = msgspec.structs.replace(base, parallelism={"u": 2, "k": 2})
    busy = msgspec.structs.replace(base, edges={"e": edge(segment("a", 1))})
    assert with_rescaled(base, {"u": 3, "k": 2}, 9) == {}
    assert with_rescaled(busy, {"u": 3, "k": 2}, 9) == {"u": StageClock(rescaled=9)}
    assert with_rescaled(busy, {"u": 2, "k": 2}, 9) == {}


def test_a_rescaled_stage_waits_only_while_lanes_behind_it_have_older_rows() -> None:
    clock = StageClock(rescaled=5)
    edges = {"lane": edge(segment("a", 6, 4)), "new": edge(segment("b", 6, 5))}
    assert held_before(edges, ("lane",), clock) == 5
    assert held_before(edges, ("new",), clock) is None
    assert held_before(edges, ("lane",), StageClock()) is None
    assert planned(InputFacts(edge(segment("old", 4), segment("live", 5)), before=5)) == ["live"]


# -- small worlds ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Token:
    """A row: when the source delivered it, and its place there; tokens of one partition keep their order."""

    arrival: int
    partition: int
    place: int


@dataclass(frozen=True)
class Stage:
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ordered: bool = False
    waits_for: tuple[str, ...] = ()
    lanes_behind: tuple[str, ...] = ()


GRAPHS: dict[str, tuple[Stage, ...]] = {
    "one": (Stage("u", ("s",), ("uk",)), Stage("k", ("uk",), (), True, ("s",))),
    "two": (
        Stage("u", ("s",), ("uv",), lanes_behind=("uv",)),
        Stage("v", ("uv",), ("vk",)),
        Stage("k", ("vk",), (), True, ("uv", "s")),
    ),
    "three": (
        Stage("u", ("s",), ("uv",), lanes_behind=("uv", "vw")),
        Stage("v", ("uv",), ("vw",), lanes_behind=("vw",)),
        Stage("w", ("vw",), ("wk",)),
        Stage("k", ("wk",), (), True, ("vw", "uv", "s")),
    ),
    "union": (
        Stage("u", ("s",), ("um",), lanes_behind=("um",)),
        Stage("m", ("um", "t"), ("mk",)),
        Stage("k", ("mk",), (), True, ("um", "s", "t")),
    ),
    "keyed between": (
        Stage("u", ("s",), ("uk",)),
        Stage("k", ("uk",), ("kl",), True, ("s",)),
        Stage("l", ("kl",), (), True, ("uk", "s")),
    ),
}


class Chance(Protocol):
    """Who decides how far a subtask gets, and whether there is a rescale."""

    def choice(self, options: Sequence[int], /) -> int: ...


@dataclass
class World:
    """Tokens on edges, by segment: all rows of a segment share lane, arrival and epoch."""

    stages: tuple[Stage, ...]
    width: int = 2
    epoch: int = 0
    tokens: dict[str, list[tuple[int, int, Token]]] = field(default_factory=dict)
    """By edge: (lane, epoch of writing, token), in the order of writing."""
    seen: dict[str, list[Token]] = field(default_factory=dict)
    clocks: dict[str, StageClock] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tokens = {name: [] for stage in self.stages for name in (*stage.inputs, *stage.outputs)}
        self.seen = {stage.name: [] for stage in self.stages if stage.ordered}

    def edges(self) -> dict[str, EdgeState]:
        return {
            name: edge(*(segment(str(number), epoch, token.arrival) for number, (_, epoch, token) in enumerate(mine)))
            for name, mine in self.tokens.items()
        }

    def deliver(self, source: str, tokens: Sequence[Token]) -> None:
        """Live rows of the next epoch: its stages take as many of them as they like."""
        self.tokens[source] += ((token.partition, self.epoch + 1, token) for token in tokens)

    def rescale(self, width: int) -> None:
        for stage in self.stages:
            self.clocks[stage.name] = StageClock(rescaled=self.epoch + 1)
        self.width = width

    def lane_of(self, lane: int) -> int:
        """The subtask of a lane; what it writes has this number for a lane."""
        return lane % self.width

    def run(self, chance: Chance) -> int:
        """One epoch; how many tokens moved."""
        self.epoch += 1
        return sum(self._stage(stage, chance) for stage in self.stages)

    def _stage(self, stage: Stage, chance: Chance) -> int:
        moved = 0
        for name in stage.inputs:
            edges = self.edges()
            before = (
                None
                if stage.ordered
                else held_before(edges, stage.lanes_behind, self.clocks.get(stage.name, StageClock()))
            )
            part = InputFacts(edges[name], after=held_after(edges, stage.waits_for), before=before)
            numbers = [int(path) for path in planned(part)]
            moved += self._take(stage, name, numbers, chance)
        return moved

    def _take(self, stage: Stage, name: str, numbers: list[int], chance: Chance) -> int:
        """Each subtask takes some of what it may read, in reading order, and at least one."""
        lanes: dict[int, list[int]] = {}
        for number in numbers:
            lane, _, token = self.tokens[name][number]
            subtask = 0 if stage.ordered else self.lane_of(lane)
            lanes.setdefault(subtask, []).append(number)
        taken: list[tuple[int, int]] = []
        for subtask, mine in lanes.items():
            taken += ((subtask, number) for number in mine[: chance.choice((1, len(mine)))])
        for subtask, number in taken:
            token = self.tokens[name][number][2]
            if stage.ordered:
                self.seen[stage.name].append(token)
            for output in stage.outputs:
                self.tokens[output].append((subtask, self.epoch, token))
        gone = {number for _, number in taken}
        self.tokens[name] = [token for number, token in enumerate(self.tokens[name]) if number not in gone]
        return len(taken)

    def in_flight(self) -> int:
        return sum(len(mine) for mine in self.tokens.values())


def assert_no_overtake(seen: Mapping[str, list[Token]]) -> None:
    for stage, tokens in seen.items():
        arrivals = [token.arrival for token in tokens]
        assert arrivals == sorted(arrivals), f"{stage}: {tokens}"
        for partition in {token.partition for token in tokens}:
            mine = [(token.arrival, token.place) for token in tokens if token.partition == partition]
            assert mine == sorted(mine), f"{stage}, partition {partition}: {tokens}"


class Every:
    """Goes through every sequence of choices: one run for each."""

    def __init__(self) -> None:
        self._path: list[list[int]] = []
        self._depth = self.runs = 0

    def next_run(self) -> bool:
        while self.runs and self._path and self._path[-1][0] == self._path[-1][1] - 1:
            self._path.pop()
        if self.runs and not self._path:
            return False
        if self.runs:
            self._path[-1][0] += 1
        self._depth, self.runs = 0, self.runs + 1
        return True

    def choice(self, options: Sequence[int]) -> int:
        options = sorted(set(options))
        if len(options) == 1:
            return options[0]
        if self._depth == len(self._path):
            self._path.append([0, len(options)])
        self._depth += 1
        return options[self._path[self._depth - 1][0]]


def in_order_to_the_end(world: World, sizes: Sequence[Sequence[int]], chance: Chance, widths: Sequence[int]) -> None:
    """Delivers micro-batches, `sizes` of their partitions, with a rescale after each; then drains."""
    sources = [name for stage in world.stages for name in stage.inputs if len(name) == 1]
    delivered = 0
    for batch in sizes:
        for number, source in enumerate(sources):
            tokens = [
                Token(world.epoch + 1, partition + len(batch) * number, place)
                for partition, size in enumerate(batch)
                for place in range(size)
            ]
            delivered += len(tokens)
            world.deliver(source, tokens)
        world.run(chance)
        width = chance.choice((world.width, *widths))
        if width != world.width:
            world.rescale(width)
    while world.in_flight():
        assert world.run(chance), f"nothing moves: {world.tokens}"
    assert_no_overtake(world.seen)
    assert all(len(tokens) == delivered for tokens in world.seen.values())


@pytest.mark.parametrize(
    ("graph", "sizes"),
    [
        ("one", ((3, 0), (0, 1), (1, 1))),
        ("two", ((3, 0), (1, 1))),
        ("three", ((2, 0), (1, 1))),
        ("union", ((2, 0), (1, 1))),
        ("keyed between", ((3, 0), (0, 1), (1, 1))),
    ],
)
def test_whatever_stages_get_done_nothing_overtakes_and_nothing_stands_still(
    graph: str, sizes: tuple[tuple[int, int], ...]
) -> None:
    every = Every()
    while every.next_run():
        in_order_to_the_end(World(GRAPHS[graph]), sizes, every, (3,))
    assert every.runs > 10


@pytest.mark.parametrize("graph", GRAPHS)
def test_larger_worlds_at_random(graph: str) -> None:
    kinds = ((3, 0), (0, 1), (2, 1), (0, 0))
    for number, sizes in enumerate(itertools.product(kinds, repeat=3)):
        in_order_to_the_end(World(GRAPHS[graph]), sizes, random.Random(f"{graph} {number}"), (1, 3))


@pytest.mark.parametrize(
    ("graph", "change"),
    [
        ("one", {"waits_for": ()}),
        ("two", {"lanes_behind": ()}),
        ("three", {"lanes_behind": ("vw",)}),
        ("union", {"waits_for": ("s", "t")}),
    ],
)
def test_the_small_worlds_see_a_hold_that_is_left_out(graph: str, change: dict[str, tuple[str, ...]]) -> None:
    stages = tuple(
        replace(stage, **{name: value for name, value in change.items() if getattr(stage, name)})
        for stage in GRAPHS[graph]
    )
    with pytest.raises(AssertionError, match="Token"):
        many_in_order(stages)


def many_in_order(stages: tuple[Stage, ...]) -> None:
    chance = random.Random(1)
    for _ in range(500):
        sizes = [(chance.randint(0, 4), chance.randint(0, 4)) for _ in range(3)]
        in_order_to_the_end(World(stages), sizes, chance, (1, 3))
