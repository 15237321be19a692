"""Subtasks by operator, as people write them, and by stage, as the engine counts them."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.engine.options import Config
from penstock.errors import ConfigError
from penstock.graph.pipeline import Pipeline


def by_stage(pipeline: Pipeline, parallelism: int | Mapping[str, int]) -> dict[str, int]:
    """Of all stages, or of those that a mapping names by any of their operators.

    Raises: `ConfigError` for a name that no operator has.
    """
    stage_of = pipeline.stage_of()
    if isinstance(parallelism, int):
        return {stage.name: parallelism for stage in pipeline.stages}
    unknown = sorted(set(parallelism) - set(stage_of))
    if unknown:
        raise ConfigError(
            f"parallelism names {', '.join(map(repr, unknown))}; operators are {', '.join(stage_of)}",
            cause="a typing error, or an operator without a name= of its own",
            next_step="use the names of operators as above",
        )
    return {stage_of[operator]: count for operator, count in parallelism.items()}


def at_start(pipeline: Pipeline, config: Config) -> dict[str, int]:
    """Of every stage. Raises: `ConfigError`."""
    named = by_stage(pipeline, config.parallelism)
    return {stage.name: named.get(stage.name, config.parallelism_of(stage.name)) for stage in pipeline.stages}


def at_rescale(pipeline: Pipeline, parallelism: int | Mapping[str, int], max_parallelism: int) -> dict[str, int]:
    """Of the stages that change. Raises: `ConfigError`."""
    wanted = by_stage(pipeline, parallelism)
    for stage, count in wanted.items():
        if not 1 <= count <= max_parallelism:
            raise ConfigError(
                f"parallelism {count} of {stage} is not between 1 and {max_parallelism}",
                cause="a subtask needs at least one key group of its own",
                next_step=f"choose 1 to {max_parallelism}",
            )
    return wanted
