"""The parts of chaos and soak that decide: schedules from seeds, and what counts as growing."""

from __future__ import annotations

import random

import pytest

from tests.chaos.growth import Limit, growth
from tests.chaos.messages import Ended
from tests.chaos.schedule import ENDS_DRIVER, WEIGHTS, schedule
from tests.chaos.shapes import SHAPES
from tests.chaos.verdict import Wrong, require_understandable

LIMIT = Limit(share=0.1, floor=5.0, unit="MB", why="")


def test_a_seed_gives_one_schedule_and_seeds_give_all_faults_and_shapes() -> None:
    """Repeating a run means repeating its seed."""
    made = [schedule(seed) for seed in range(400)]
    assert made == [schedule(seed) for seed in range(400)]
    assert {act.what for plan in made for act in plan.acts} == set(WEIGHTS)
    assert {plan.shape for plan in made} == set(SHAPES)


def test_executors_are_killed_on_clusters_only_and_clusters_keep_their_driver() -> None:
    for plan in map(schedule, range(400)):
        whats = {act.what for act in plan.acts}
        assert plan.cluster or "kill executor" not in whats
        assert not (plan.cluster and whats & ENDS_DRIVER)
        assert (plan.small is not None) == ("fill disk" in whats)


def test_a_steady_leak_grows_and_noise_peaks_and_a_slow_start_do_not() -> None:
    chance = random.Random(1)
    at_s = [5.0 * n for n in range(60)]
    noise = [100 + chance.uniform(-4, 4) + (80 if n % 11 == 0 else 0) for n in range(60)]
    start = [100 - max(0, 15 - n) * 6.0 for n in range(60)]
    leak = [level + 0.4 * n for n, level in enumerate(noise)]
    assert growth(at_s, noise, LIMIT).is_flat
    assert growth(at_s, start, LIMIT).is_flat
    assert not growth(at_s, leak, LIMIT).is_flat


@pytest.mark.parametrize(
    "message",
    [
        "Job aborted",
        "[PEN-000] Penstock failed: x\n  likely cause: a fault in Penstock\n  next step:    none",
        "[PEN-033] A Spark job failed: x\n  likely cause: y",
        "[PEN-033] A Spark job failed: x\n\tat org.apache.spark\n  likely cause: y\n  next step:    z",
    ],
)
def test_a_message_needs_a_code_a_cause_a_next_step_and_no_stack(message: str) -> None:
    """E5."""
    with pytest.raises(Wrong):
        require_understandable(Ended(message[1:8], message))
    require_understandable(Ended("PEN-033", "[PEN-033] A job failed: x\n  likely cause: y\n  next step:    z"))
