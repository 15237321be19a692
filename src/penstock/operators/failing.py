"""User code that raised: which record it was, and an error that says so (D8)."""

from __future__ import annotations

import json
import math
import os
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import OperatorFailed

RECORD_CHARS_MAX = 1_000
_MESSAGE_CHARS_MAX = 2_000
_ITEMS_MAX = 100

_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


class BadOutput(Exception):
    """What user code gave cannot be taken: mostly it does not fit the declared columns."""

    def __init__(self, seen: str, next_step: str, cause: str = "the function's output does not fit its schema") -> None:
        super().__init__(seen)
        self.next_step, self.cause = next_step, cause


class Unreadable(ValueError):
    """A row with a value that Python has none for: text that is not UTF-8, a timestamp after the year 9999."""

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

    Runs user code at most log2(rows) + 1 times more, on copies, so that it cannot have changed what it gets.
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
    """The error that tells what user code raised, where, and on which record."""
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
    """File, line and function where the user's own code was last, in the deepest frame if it never was."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    if not frames:
        return ""
    own = [(code, line) for code, line in frames if _is_users(code.co_filename)]
    code, line = (own or frames)[-1]
    return _writable(f"{code.co_filename}:{line} in {code.co_name}")


def text_of(error: BaseException) -> str:
    """What an exception says, whatever it is, as text that can be stored."""
    try:
        return _writable(str(error))
    except Exception as again:  # noqa: BLE001 - a method of user code
        return f"(its text cannot be read: {type(again).__name__})"


def shown(value: object) -> str:
    """A value of user code in a message."""
    try:
        return f"{value!r:.100}"
    except Exception:  # noqa: BLE001 - a method of user code
        return f"a {type(value).__name__}"


def _writable(text: str) -> str:
    """Half a character, such as ``"\\ud83d"``, is no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def _is_users(path: str) -> bool:
    return not path.startswith((_PACKAGE, *_LIBRARIES)) and not path.endswith((".pyx", ".pxi"))


def record_of(batch: pa.RecordBatch, row: int) -> str:
    """One row as JSON, cut to a length that fits into a message."""
    return as_json(_values_of(batch, row))


def whole_record(batch: pa.RecordBatch, row: int) -> str:
    """One row as JSON, however long it is; what JSON has no form for is text, bytes are hexadecimal."""
    return json.dumps(_plain(_values_of(batch, row), None, None), ensure_ascii=False, allow_nan=False, default=str)


def _values_of(batch: pa.RecordBatch, row: int) -> dict[str, Any]:
    return {name: value_of(batch.column(i)[row]) for i, name in enumerate(batch.schema.names)}


def value_of(scalar: pa.Scalar, not_utf8: str = "backslashreplace") -> Any:
    """The value in Python; what Python has none for as text: moments as numbers, bytes that are not UTF-8 escaped.

    >>> value_of(pa.scalar(b"caf\\xe9").cast(pa.string(), safe=False))
    'caf\\\\xe9'
    """
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        match scalar:
            case pa.StructScalar():
                return {name: value_of(part, not_utf8) for name, part in scalar.items()}
            case pa.MapScalar():
                pairs = zip(scalar.values.field(0), scalar.values.field(1), strict=True)
                return [(value_of(key, not_utf8), value_of(item, not_utf8)) for key, item in pairs]
            case pa.ListScalar() | pa.LargeListScalar() | pa.FixedSizeListScalar():
                return [value_of(part, not_utf8) for part in scalar.values]
            case pa.StringScalar() | pa.LargeStringScalar():
                return scalar.as_buffer().to_pybytes().decode("utf-8", not_utf8)
        return f"{scalar.value} ({scalar.type})"


def as_json(record: Mapping[str, Any]) -> str:
    """A record as JSON of at most `RECORD_CHARS_MAX` characters.

    >>> as_json({"user": 7, "picture": b"\\x01\\xff", "mean": float("nan")})
    '{"user": 7, "picture": "01ff", "mean": "NaN"}'
    """
    # Large values are cut first: a record may be larger than memory has room for its text.
    plain = _plain(record, RECORD_CHARS_MAX, _ITEMS_MAX)
    return shortened(json.dumps(plain, ensure_ascii=False, allow_nan=False, default=str), RECORD_CHARS_MAX)


def _plain(value: Any, chars_max: int | None, items_max: int | None) -> Any:
    """The value as JSON knows it, no longer than that; None: however long it is."""
    match value:
        case str():
            return value[:chars_max]
        case bytes():
            return value[:chars_max].hex()
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case Mapping():
            return {str(name): _plain(item, chars_max, items_max) for name, item in list(value.items())[:items_max]}
        case list() | tuple():
            more = ["…"] if items_max is not None and len(value) > items_max else []
            return [_plain(item, chars_max, items_max) for item in value[:items_max]] + more
    return value


def shortened(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"
