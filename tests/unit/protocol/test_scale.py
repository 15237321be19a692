"""Autoscaling: a pure decision, tried on a model of a stage under every kind of constant load."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError
from penstock.observe.events import EpochPublished, Event, Rescaled
from penstock.protocol.scale import (
    DOWN_AFTER,
    UNJUDGED,
    UP_AFTER,
    Bounds,
    Load,
    ScaleMemory,
    rescaling,
)
from penstock.testing.inline import InlineRun
from tests.support.engine_jobs import FakeClock, assert_exact, batches_of, epochs, keyed_slow

EPOCH_S = 1.0


@dataclass
class Stage:
    """Rows arrive and are processed at constant rates; `useful` subtasks at most make it faster."""

    arriving_per_s: float
    per_subtask_per_s: float
    useful: int
    slots: int
    parallelism: int
    backlog: float = 0.0

    def epoch(self) -> Load:
        at_once = min(self.parallelism, self.slots)
        capacity = min(at_once, self.useful) * self.per_subtask_per_s * EPOCH_S
        wanted = self.backlog + self.arriving_per_s * EPOCH_S
        done = int(min(wanted, capacity))
        self.backlog = wanted - done
        return Load(
            parallelism=self.parallelism,
            slots=self.slots,
            rows_in_flight=int(self.backlog),
            bytes_in_flight=int(self.backlog) * 100,
            rows_processed=done,
            stepped_s=done / self.per_subtask_per_s,
            duration_s=EPOCH_S,
            span_s=EPOCH_S,
        )


def history(stage: Stage, bounds: Bounds, epochs: int) -> list[int]:
    """The parallelism of each epoch, the last one being that after it."""
    memory, counts = ScaleMemory(), [stage.parallelism]
    for _ in range(epochs):
        decision = rescaling(memory, stage.epoch(), bounds)
        memory = decision.memory
        assert (decision.why is not None) or decision.parallelism == stage.parallelism
        stage.parallelism = decision.parallelism
        counts.append(stage.parallelism)
    return counts


def turns(counts: list[int]) -> int:
    """How often the parallelism changed its direction."""
    steps = [after - before for before, after in itertools.pairwise(counts) if after != before]
    return sum((before > 0) != (after > 0) for before, after in itertools.pairwise(steps))


BOUNDS = st.tuples(st.integers(1, 32), st.integers(1, 32)).map(lambda pair: (min(pair), max(pair)))


@settings(max_examples=100, deadline=None)
@example(bounds=(1, 3), needed=0.0, per_subtask=50, useful=3, slots=99, start=1, backlog=35701.0)
@given(
    bounds=BOUNDS,
    needed=st.floats(0, 20),
    per_subtask=st.sampled_from([50, 1_000, 30_000]),
    useful=st.integers(1, 32) | st.just(99),
    slots=st.integers(1, 32) | st.just(99),
    start=st.integers(1, 32),
    backlog=st.floats(0, 200_000),
)
def test_constant_load_never_makes_it_swing_and_bounds_are_kept(
    bounds: Bounds, needed: float, per_subtask: float, useful: int, slots: int, start: int, backlog: float
) -> None:
    """A backlog at the start may take it up, then the load takes it down: one turn, then it stays."""
    start = min(max(start, bounds[0]), bounds[1])
    stage = Stage(needed * per_subtask, per_subtask, useful, slots, start, backlog)
    counts = history(stage, bounds, 12 * DOWN_AFTER)
    assert all(bounds[0] <= count <= bounds[1] for count in counts)
    if stage.backlog == 0:  # perhaps it has just gone
        counts += history(stage, bounds, 12 * DOWN_AFTER)
        assert len(set(counts[-3 * DOWN_AFTER :])) == 1
    assert turns(counts) <= 1


def test_it_reacts_within_a_few_epochs_in_every_small_world() -> None:
    """Exhaustive: too small a stage grows until it keeps up, an idle one shrinks until it is busy enough."""
    for needed, wanted, highest in itertools.product((1, 2, 3, 7, 12), (1, 2, 5, 12), (1, 4, 16)):
        start = min(wanted, highest)
        stage = Stage(needed * 100.0 - 10, 100.0, useful=99, slots=99, parallelism=start)
        counts = history(stage, (1, highest), 250)
        if start < needed:
            first = next((n for n, count in enumerate(counts) if count > start), None)
            assert (first is None) == (start == highest)
            assert first is None or first <= 12 * (UNJUDGED + UP_AFTER), (needed, start, highest)
        if highest > needed:
            assert stage.backlog < 100, "it keeps up in the end"
            assert needed <= counts[-1] <= 2 * needed + 1, "and is not much too large"


def test_a_deep_backlog_is_answered_after_three_epochs_by_twice_the_subtasks() -> None:
    stage = Stage(0, 100, useful=99, slots=99, parallelism=2, backlog=100_000)
    counts = history(stage, (1, 16), 60)
    assert counts.index(4) == UNJUDGED + UP_AFTER
    assert counts.index(8) == 2 * (UNJUDGED + UP_AFTER)
    assert max(counts) == 16


def test_one_large_micro_batch_is_not_taken_for_a_backlog() -> None:
    stage = Stage(100, 100, useful=99, slots=99, parallelism=2, backlog=450)
    assert max(history(stage, (2, 16), 40)) == 2


def test_what_does_not_help_is_not_repeated() -> None:
    """A hot key: one subtask does all the work, however many there are."""
    stage = Stage(1_000, 100, useful=1, slots=16, parallelism=1)
    assert max(history(stage, (1, 16), 200)) == 2
    stage = Stage(1_000, 100, useful=1, slots=16, parallelism=1)
    memory, said = ScaleMemory(), []
    for _ in range(40):
        decision = rescaling(memory, stage.epoch(), (1, 16))
        memory, stage.parallelism = decision.memory, decision.parallelism
        said += [decision.why] if decision.why else []
    assert said[0].startswith("1→2: backlog ")
    assert "at 100 rows/s" in said[0]
    assert said[-1].startswith("stays at 2: ")
    assert "more subtasks did not help" in said[-1]


def test_subtasks_that_wait_are_told_from_those_that_compute() -> None:
    """Eight subtasks on two slots, each waits for a service: what helps is more slots, not more subtasks."""
    load = Load(8, 2, 100_000, 1_000_000, 100, 2.0, 1.0, 1.0, computing=0.04)
    memory = ScaleMemory(watched=9, hot=UP_AFTER, rows=300, seconds=3.0, rate_before=100.0)
    why = rescaling(memory, load, (1, 16)).why
    assert why is not None
    assert "all 2 slots are taken by subtasks that compute 4% of their time" in why
    computing = rescaling(memory, replace(load, computing=0.97), (1, 16)).why
    assert computing is not None
    assert "one key holds the others up" in computing


# -- in the engine -----------------------------------------------------------------------------------------------------


def test_a_backlog_rescales_the_running_query_and_says_why(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """B2: through the same path as `query.rescale`; in the event, in progress, in the next epochs."""
    events: list[Event] = []
    run = InlineRun(batches_of(900, 1), clock)
    query = run.start(
        keyed_slow(clock, table), checkpoint=tmp_path, epoch="50 ms", parallelism=9, autoscale=(1, 4),
        on_event=events.append,
    )  # fmt: skip
    query.await_termination(60)
    assert_exact(table, 900)
    first = epochs(events)[0]
    assert first.parallelism == {"slow": 4}, "what was asked for, within the bounds"
    # Subtasks run one after another, on the clock that the driver looks at, too.
    run = InlineRun(
        batches_of(900, 2),
        clock,
        accepted=[0],
        driver_clock=clock,
        prepare=lambda cluster: setattr(cluster, "slots", 1),
    )
    events.clear()
    box = run.start(
        keyed_slow(clock, table), checkpoint=tmp_path, epoch="50 ms", autoscale=(8, 16), on_event=events.append
    )
    box.await_termination(60)
    assert_exact(table, 1800)
    rescaled = [event for event in events if isinstance(event, Rescaled)]
    assert rescaled
    assert (rescaled[0].stage, rescaled[0].old, rescaled[0].new) == ("slow", 8, 16)
    assert rescaled[0].reason is not None
    assert rescaled[0].reason.startswith("8→16: backlog ")
    said = [event for event in epochs(events) if event.scaling]
    assert said[0].scaling == {"slow": rescaled[0].reason}
    assert {event.parallelism["slow"] for event in epochs(events)} == {8, 16}


def test_a_stage_that_the_user_rescaled_is_left_alone(tmp_path: Path, clock: FakeClock, table: str) -> None:
    events: list[Event] = []
    box = []

    def listen(event: Event) -> None:
        events.append(event)
        if isinstance(event, EpochPublished) and event.kind == "ingest":
            while not box:
                pass
            box[0].rescale(3)

    run = InlineRun(batches_of(900, 1), clock)
    box.append(
        run.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch="50 ms", autoscale=(1, 16), on_event=listen)
    )
    box[0].await_termination(60)
    assert [event.new for event in events if isinstance(event, Rescaled)] == [3]
    assert epochs(events)[-1].parallelism == {"slow": 3}
    assert_exact(table, 900)


@pytest.mark.parametrize("bounds", [(3, 2), (0, 4), (1, 129), 4, "2-4", (1, 2, 3)])
def test_bounds_that_cannot_be_are_refused(tmp_path: Path, clock: FakeClock, table: str, bounds: object) -> None:
    with pytest.raises(ConfigError, match="autoscale"):
        InlineRun([], clock).start(keyed_slow(clock, table), checkpoint=tmp_path, autoscale=bounds)
