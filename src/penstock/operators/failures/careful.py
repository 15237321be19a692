"""Specs of operators that can skip failing records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

import pyarrow as pa

from penstock.errors import PipelineError
from penstock.operators.base import OperatorContext, SpecDefaults
from penstock.operators.failures.deadletters import LETTER_SCHEMA, Letters
from penstock.records import DEAD_LETTERS

OnError: TypeAlias = Literal["stop", "dead_letter"]


@dataclass(frozen=True, kw_only=True, eq=False)  # subclasses say what makes them equal
class CarefulSpec(SpecDefaults):
    """A spec with an `on_error` option for failing records."""

    on_error: OnError = "stop"
    event_time: str | None = None
    """The input's column with the event time, for dead letters."""
    watermarks: bool = True
    """Whether the input has watermarks. Without them, timers in event time never fire."""

    def __post_init__(self) -> None:
        check_on_error(self.on_error)

    @property
    def side_outputs(self) -> Mapping[str, pa.Schema]:
        return MappingProxyType({DEAD_LETTERS: LETTER_SCHEMA} if self.on_error == "dead_letter" else {})

    def letters(self, operator: str, context: OperatorContext) -> Letters | None:
        """Collects the failing records of an attempt; None: the first one stops the query."""
        return Letters(operator, self.event_time, context) if self.on_error == "dead_letter" else None


def check_on_error(on_error: object) -> None:
    """Raises: `PipelineError`."""
    if on_error not in ("stop", "dead_letter"):
        raise PipelineError(
            f"on_error={on_error!r}",
            cause="there are two things to do with a record that fails",
            next_step='write on_error="stop" (the default) or on_error="dead_letter"',
        )
