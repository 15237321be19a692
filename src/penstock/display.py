"""Values, records and exceptions of user code as text for a message. Showing them never fails."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

RECORD_CHARS_MAX = 1_000


_ITEMS_MAX = 100


def text_of(error: BaseException) -> str:
    """The message of any exception, as text that can be stored."""
    try:
        return writable(str(error))
    except Exception as again:  # noqa: BLE001 - a method of user code
        return f"(its text cannot be read: {type(again).__name__})"


def shown(value: object) -> str:
    """A value of user code in a message."""
    try:
        return f"{value!r:.100}"
    except Exception:  # noqa: BLE001 - a method of user code
        return f"a {type(value).__name__}"


def writable(text: str) -> str:
    """Half a character, such as ``"\\ud83d"``, is no UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()


def record_of(batch: pa.RecordBatch, row: int) -> str:
    """One row as JSON, cut to a length that fits into a message."""
    return as_json(_values_of(batch, row))


def whole_record(batch: pa.RecordBatch, row: int) -> str:
    """One row as JSON, of any length. Bytes are hexadecimal; other values that JSON does not have are text."""
    return json.dumps(_plain(_values_of(batch, row), None, None), ensure_ascii=False, allow_nan=False, default=str)


def _values_of(batch: pa.RecordBatch, row: int) -> dict[str, Any]:
    return {name: value_of(batch.column(i)[row]) for i, name in enumerate(batch.schema.names)}


def value_of(scalar: pa.Scalar, not_utf8: str = "backslashreplace") -> Any:
    """The value in Python. Times outside of Python's calendar become numbers; bytes that are not UTF-8 are escaped.

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
    # Large values are cut first: the text of a whole record may not fit into memory.
    plain = _plain(record, RECORD_CHARS_MAX, _ITEMS_MAX)
    return shortened(json.dumps(plain, ensure_ascii=False, allow_nan=False, default=str), RECORD_CHARS_MAX)


def _plain(value: Any, chars_max: int | None, items_max: int | None) -> Any:
    """The value as JSON knows it, cut to that length; None: not cut."""
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
