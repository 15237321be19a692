"""Pipelines drawn from seeds give what DuckDB gives; `make generate N=20000 SEED=0` runs more of them."""

from __future__ import annotations

import pytest

from tests.generated.oracle import Oracle
from tests.generated.program import Program, draw_program
from tests.generated.run import judge, judge_seed
from tests.generated.shrink import shrunk

SEEDS = 150
AT_ONCE = 15


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle()


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_generated_pipelines_give_what_duckdb_gives(oracle: Oracle, first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        verdict = judge_seed(oracle, seed)
        assert verdict.passed, f"python -m tests.generated --only {seed}\n{verdict}"


def test_a_seed_always_gives_the_same_pipeline() -> None:
    assert str(draw_program(7)) == str(draw_program(7))
    assert str(draw_program(7)) != str(draw_program(8))


def test_every_operation_is_drawn_and_many_have_default_names() -> None:
    """A generator that never draws something proves nothing about it."""
    nodes = [node for seed in range(400) for node in draw_program(seed).nodes if node.inputs]
    on_spark = [node for seed in range(60) for node in draw_program(seed, on_spark=True).nodes]
    drawn = {type(node.op).__name__ for node in (*nodes, *on_spark)}
    assert drawn == {
        "Source", "Pushed", "MapBatches", "Select", "Filter", "FlatMap", "MapAsync", "Letters", "Union", "Aggregate",
        "Top", "Deduplicate", "Number", "Third", "Note", "Sum", "Windowed", "Late", "WindowTop", "Join", "Ring",
        "Connect", "Broadcast", "Rebalance", "Everything",
    }  # fmt: skip
    named = [node.op.name for node in nodes if hasattr(node.op, "name")]
    assert 0.4 < sum(name is None for name in named) / len(named) < 0.7


def test_a_pipeline_that_differs_is_made_smaller(oracle: Oracle) -> None:
    """Whatever has a union in it is said to differ."""

    def fails(program: Program) -> bool:
        return any(type(node.op).__name__ == "Union" for node in program.reached())

    program = next(found for found in map(draw_program, range(100)) if fails(found) and len(found.outputs) > 3)
    small = shrunk(program, fails)
    assert fails(small)
    assert len(small.outputs) < len(program.outputs)
    assert judge(oracle, small).passed
