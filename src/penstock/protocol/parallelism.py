"""How many subtasks each stage has: from what people write to a number for every stage.

People write one number for all operators, or numbers by operator. Operators that run in one stage share its subtasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

Asked: TypeAlias = int | Mapping[str, int]
Bounds: TypeAlias = tuple[int, int]

DEFAULT_PARALLELISM = 4


@dataclass(frozen=True, slots=True)
class UnknownOperators:
    """Operators were named that the pipeline does not have."""

    names: tuple[str, ...]
    known: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TooParallel:
    """More subtasks were asked for than there are key groups; `operator` is None where all have that number."""

    operator: str | None
    count: int


def too_parallel(asked: Asked, max_parallelism: int) -> TooParallel | None:
    """
    >>> too_parallel({"enrich": 2, "totals": 129}, 128)
    TooParallel(operator='totals', count=129)
    """
    if isinstance(asked, int):
        return TooParallel(None, asked) if asked > max_parallelism else None
    return next((TooParallel(name, count) for name, count in asked.items() if count > max_parallelism), None)


def asked_by_stage(asked: Asked, stage_of: Mapping[str, str]) -> dict[str, int] | UnknownOperators:
    """The stages that were asked for, and no others; `stage_of` has the stage of every operator.

    >>> asked_by_stage({"enrich": 8}, {"parse": "parse", "enrich": "parse", "totals": "totals"})
    {'parse': 8}
    """
    if isinstance(asked, int):
        return dict.fromkeys(stage_of.values(), asked)
    if unknown := sorted(set(asked) - set(stage_of)):
        return UnknownOperators(tuple(unknown), tuple(stage_of))
    return {stage_of[operator]: count for operator, count in asked.items()}


def by_stage(asked: Asked, stage_of: Mapping[str, str], max_parallelism: int) -> dict[str, int] | UnknownOperators:
    """Every stage; those that were not asked for get the default."""
    match asked_by_stage(asked, stage_of):
        case UnknownOperators() as unknown:
            return unknown
        case wanted:
            return {**dict.fromkeys(stage_of.values(), min(DEFAULT_PARALLELISM, max_parallelism)), **wanted}


def first_parallelism(asked: Mapping[str, int], stored: Mapping[str, int], bounds: Bounds | None) -> dict[str, int]:
    """Where a run begins: as asked for; with autoscaling, where the checkpoint was, within the bounds."""
    if bounds is None:
        return dict(asked)
    return {stage: min(max(stored.get(stage, count), bounds[0]), bounds[1]) for stage, count in asked.items()}
