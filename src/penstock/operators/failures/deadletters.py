"""Records that made an operator fail, as rows of a dead-letter table.

They leave by a side output, so they enter a checkpoint and a table exactly once, like all other output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.display import RECORD_CHARS_MAX, shortened, text_of, whole_record
from penstock.errors import PipelineError
from penstock.operators.base import OperatorContext
from penstock.operators.failures.failing import location
from penstock.protocol.report import FAILED, TRIED
from penstock.records import DEAD_LETTERS, Side

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


def letters_go_nowhere(operators: Sequence[str]) -> PipelineError:
    return PipelineError(
        f"dead letters of {', '.join(operators)} go nowhere",
        cause='on_error="dead_letter" needs a table for the records that fail',
        next_step="give start() a sink, dead_letters=pen.Paimon(…), or write stream.side('dead_letters') to one",
    )


def no_letters_for(table: str) -> PipelineError:
    return PipelineError(
        f"nothing writes dead letters to {table}",
        cause='no operator has on_error="dead_letter", or all of them have their side output taken',
        next_step='add on_error="dead_letter" to an operator, or leave dead_letters= away',
    )


def no_place_for_letters(table: str) -> PipelineError:
    return PipelineError(
        f"dead letters cannot go to {table}",
        cause="it has buckets or a primary key, and several stages may write dead letters",
        next_step="use an append table without buckets for them",
    )


def sample_of(letters: pa.RecordBatch) -> str:
    """The first of some dead letters, in words."""
    first = letters.slice(0, 1).select(["error", "message", "record"]).to_pylist()[0]
    return shortened(f"{first['error']}: {first['message']}, record {first['record']}", RECORD_CHARS_MAX)


def _message(error: BaseException) -> str:
    place = location(error)
    return text_of(error) + (f" (at {place})" if place else "")
