"""User code that raised: which record it was, and an error that says so."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.display import record_of, shortened, text_of, writable
from penstock.errors import OperatorFailed

_MESSAGE_CHARS_MAX = 2_000

_PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


class BadOutput(Exception):
    """The result of user code is refused, usually because it does not fit the declared columns."""

    def __init__(self, seen: str, next_step: str, cause: str = "the function's output does not fit its schema") -> None:
        super().__init__(seen)
        self.next_step, self.cause = next_step, cause


class Unreadable(ValueError):
    """A row with a value that Python cannot hold: text that is not UTF-8, a timestamp after the year 9999."""

    def __init__(self, column: str, kind: pa.DataType, error: Exception) -> None:
        if isinstance(error, UnicodeError):
            super().__init__(f"the column {column!r} holds bytes that are not UTF-8 as {kind}: {error}")
            self.cause = "Spark does not look into strings when it makes them of bytes, and Python has no such text"
            self.next_step = (
                f"repair them before the first operator, for example select('make_valid_utf8({column}) AS {column}'),"
                " or read the column as binary; nothing is lost"
            )
        else:
            super().__init__(f"the column {column!r} holds a value of {kind} that Python cannot hold: {error}")
            self.cause = "the function cannot take this record"
            self.next_step = "filter such records out before it, then start again: nothing is lost"


@dataclass(frozen=True, slots=True)
class Culprit:
    """The row of a slice that makes user code fail; not `exact` if it fails only together with rows behind it."""

    row: int
    rows: int
    exact: bool


def find_culprit(batch: pa.RecordBatch, run: Callable[[pa.RecordBatch], object], error: Exception) -> Culprit:
    """Finds the first failing row by halving; `run` has failed on the whole batch with `error`.

    Runs user code at most log2(rows) + 1 times more, on copies of the rows.
    """
    start, stop = 0, batch.num_rows
    failing = (start, stop)
    while stop - start > 1:
        middle = (start + stop) // 2
        if _fails(batch, start, middle, run, error):
            stop = middle
            failing = (start, stop)
        else:
            start = middle
    if failing != (start, stop) and _fails(batch, start, stop, run, error):
        failing = (start, stop)
    rows = failing[1] - failing[0]
    return Culprit(failing[0], rows, exact=rows == 1)


def _fails(
    batch: pa.RecordBatch, start: int, stop: int, run: Callable[[pa.RecordBatch], object], error: Exception
) -> bool:
    """Whether these rows alone raise the same kind of error."""
    try:
        run(batch.take(pa.array(np.arange(start, stop))))
    except Exception as again:  # noqa: BLE001 - user code may raise anything
        return type(again) is type(error)
    return False


def run_passing(
    batch: pa.RecordBatch, run: Callable[[pa.RecordBatch], list[pa.RecordBatch]]
) -> tuple[list[pa.RecordBatch], list[tuple[int, Exception]]]:
    """Runs user code on as many of the rows as pass, in order: the output, and the rows that fail alone.

    A slice that fails is cut into halves, which are run again as copies, down to single rows.
    """
    outputs: list[pa.RecordBatch] = []
    failed: list[tuple[int, Exception]] = []
    waiting = [(0, batch.num_rows)]
    while waiting:
        start, stop = waiting.pop()
        try:
            outputs += run(batch if stop - start == batch.num_rows else batch.take(pa.array(np.arange(start, stop))))
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            if stop - start <= 1:
                failed.append((start, error))
            else:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
    return outputs, failed


def batch_failed(
    operator: str, batch: pa.RecordBatch, run: Callable[[pa.RecordBatch], object], error: Exception
) -> OperatorFailed:
    """The error for a function over batches, with the record that `find_culprit` finds."""
    if not batch.num_rows:
        return operator_failed(operator, error, "")
    culprit = find_culprit(batch, run, error)
    note = ""
    if not culprit.exact:
        note = f"no row fails alone; the smallest slice that fails has {culprit.rows} rows, this is its first"
    return operator_failed(operator, error, record_of(batch, culprit.row), note=note)


def operator_failed(operator: str, error: Exception, record: str, *, note: str = "") -> OperatorFailed:
    """The error with what user code raised, where, and on which record."""
    if isinstance(error, BadOutput | Unreadable):
        seen, cause, next_step = text_of(error), error.cause, error.next_step
    else:
        seen = shortened(f"{type(error).__name__}: {text_of(error)}", _MESSAGE_CHARS_MAX)
        if place := location(error):
            seen += f" (at {place})"
        cause = "the function cannot take this record"
        next_step = "correct the function or filter such records out before it, then start again: nothing is lost"
    if record:
        seen += f"\n  record:       {record}" + (f" ({note})" if note else "")
    fields = {"exception": type(error).__name__, "record": record, "note": note}
    return OperatorFailed(
        f"{operator}: {seen}",
        cause=cause,
        next_step=next_step,
        operator=operator,
        **{name: value for name, value in fields.items() if value},
    )


def location(error: BaseException) -> str:
    """File, line and function of the deepest frame in the user's own code, else of the deepest frame."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if not frames:
        return ""
    own = [(code, line) for code, line in frames if _is_users(code.co_filename)]
    code, line = (own or frames)[-1]
    return writable(f"{code.co_filename}:{line} in {code.co_name}")


def _is_users(path: str) -> bool:
    return not path.startswith((_PACKAGE, *_LIBRARIES)) and not path.endswith((".pyx", ".pxi"))
