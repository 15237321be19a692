"""Records that made an operator fail, as rows of a dead-letter table (D8).

They leave by a side output, so they enter a checkpoint and a table exactly once, like all other output.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias

import pyarrow as pa

from penstock.errors import PipelineError
from penstock.operators.base import DEAD_LETTERS, OperatorContext, Side
from penstock.operators.failing import RECORD_CHARS_MAX, location, shortened, whole_record

OnError: TypeAlias = Literal["stop", "dead_letter"]

TRIED = "tried"
FAILED = "dead_letters"
"""Names of counters: how many records an operator with dead letters got, and how many of them failed."""

_MOMENT = pa.timestamp("us", "UTC")
LETTER_SCHEMA = pa.schema(
    [
        pa.field("operator", pa.string()),
        pa.field("subtask", pa.int32()),
        pa.field("error", pa.string()),
        pa.field("message", pa.string()),
        pa.field("record", pa.string()),
        pa.field("event_time", _MOMENT),
        pa.field("processing_time", _MOMENT),
        pa.field("checkpoint", pa.int64()),
    ]
)


def letters_or_nothing(on_error: OnError) -> Mapping[str, pa.Schema]:
    """The side outputs of an operator with this choice."""
    return MappingProxyType({DEAD_LETTERS: LETTER_SCHEMA} if on_error == "dead_letter" else {})


def check_on_error(operator: str, on_error: object) -> None:
    """Raises: `PipelineError`."""
    if on_error not in ("stop", "dead_letter"):
        raise PipelineError(
            f"{operator}: on_error={on_error!r}",
            cause="there are two things to do with a record that fails",
            next_step='write on_error="stop" (the default) or on_error="dead_letter"',
            operator=operator,
        )


class Careful(Protocol):
    """A spec that leaves the choice to its user."""

    @property
    def name(self) -> str: ...
    @property
    def on_error(self) -> OnError: ...
    @property
    def event_time(self) -> str | None: ...


def letters_of(spec: Careful, context: OperatorContext) -> Letters | None:
    """Where the failing records of an attempt go; None: the first of them stops the query."""
    return Letters(spec.name, spec.event_time, context) if spec.on_error == "dead_letter" else None


class Letters:
    """Collects the failed records of one operator in one subtask attempt."""

    def __init__(self, operator: str, event_time: str | None, context: OperatorContext) -> None:
        self._operator, self._event_time, self._context = operator, event_time, context
        self._rows: list[dict[str, Any]] = []
        self._failed = 0
        self.tried = 0

    def add(self, batch: pa.RecordBatch, row: int, error: BaseException) -> None:
        """`row` of `batch` made user code raise `error`."""
        self._failed += 1
        event_time = None
        if self._event_time is not None:
            event_time = batch.column(self._event_time)[row].cast(_MOMENT)
        self._rows.append(
            {
                "operator": self._operator,
                "subtask": self._context.subtask,
                "error": type(error).__name__,
                "message": _message(error),
                "record": whole_record(batch, row),
                "event_time": None if event_time is None else event_time.value,
                "processing_time": self._context.now,
                "checkpoint": self._context.checkpoint,
            }
        )

    def counters(self) -> Mapping[str, int]:
        return {TRIED: self.tried, FAILED: self._failed}

    def take(self) -> list[Side]:
        """What was collected since the last call, as output."""
        if not self._rows:
            return []
        rows, self._rows = self._rows, []
        columns = [pa.array([row[field.name] for row in rows], field.type) for field in LETTER_SCHEMA]
        return [Side(DEAD_LETTERS, pa.RecordBatch.from_arrays(columns, schema=LETTER_SCHEMA))]


def sample_of(letters: pa.RecordBatch) -> str:
    """The first of some dead letters, in words."""
    first = letters.slice(0, 1).to_pylist()[0]
    return shortened(f"{first['error']}: {first['message']}, record {first['record']}", RECORD_CHARS_MAX)


def _message(error: BaseException) -> str:
    place = location(error)
    return f"{error}" + (f" (at {place})" if place else "")
