"""Arrow types from the text that checkpoints keep of them: ``list<item: struct<a: int64>>`` becomes that type again.

A name of a field that holds ``", "`` or ``": "`` cannot be told apart from the text around it; the files of a
checkpoint know better then, and `schema_of` believes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from penstock.errors import CorruptFile

_PLAIN: dict[str, pa.DataType] = {
    str(kind): kind
    for kind in (
        *(pa.null(), pa.bool_(), pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64()),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.month_day_nano_interval()),
        *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
        *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
        *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    )
}
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), tz=([^\]]{1,64})\]")
_DECIMAL = re.compile(r"decimal(128|256)\((\d{1,2}), (-?\d{1,2})\)")
_BYTES = re.compile(r"fixed_size_binary\[(\d{1,9})\]")
_FIXED_LIST = re.compile(r"fixed_size_list<(.*)>\[(\d{1,9})\]", re.DOTALL)
_NESTED = re.compile(r"(list|large_list|struct|map)<(.*)>", re.DOTALL)
_DEPTH_MAX = 64


def schema_of(columns: Sequence[tuple[str, str]], found: pa.Schema | None = None) -> pa.Schema:
    """Columns as a checkpoint names them. `found` are those of a file with the same columns, if there is one.

    Raises: `CorruptFile` for text that is no type.
    """
    known = {} if found is None else {(field.name, str(field.type)): field.type for field in found}
    return pa.schema([(name, known.get((name, text)) or parse_type(text)) for name, text in columns])


def parse_type(text: str) -> pa.DataType:
    """
    >>> parse_type("map<string, list<item: decimal128(10, 2)>>")
    MapType(map<string, list<item: decimal128(10, 2)>>)

    Raises: `CorruptFile` for text that is no type.
    """
    try:
        return _parse(text, 0)
    except (ValueError, pa.ArrowException) as error:
        raise CorruptFile(
            f"the checkpoint names the type {text[:100]!r}: {error}",
            cause="the manifest was forged, or written by a newer Penstock",
            next_step="use a Penstock of the version that wrote it",
        ) from None


def _parse(text: str, depth: int) -> pa.DataType:
    if depth > _DEPTH_MAX:
        raise ValueError("it is nested too deeply")
    if (plain := _PLAIN.get(text)) is not None:
        return plain
    for pattern, make in _MAKERS:
        if (match := pattern.fullmatch(text)) is not None:
            return make(match, depth + 1)
    raise ValueError("it is no type of Arrow")


def _decimal(match: re.Match[str], depth: int) -> pa.DataType:
    del depth
    make = pa.decimal128 if match[1] == "128" else pa.decimal256
    return make(int(match[2]), int(match[3]))


def _nested(match: re.Match[str], depth: int) -> pa.DataType:
    kind, inside = match[1], match[2]
    if kind == "struct":
        return pa.struct([_field(part, depth) for part in _split(inside)])
    if kind == "map":
        ordered = inside.endswith(", keys_sorted")
        key, value = _split(inside.removesuffix(", keys_sorted"))
        return pa.map_(_parse(key, depth), _parse(value, depth), keys_sorted=ordered)
    return (pa.list_ if kind == "list" else pa.large_list)(_field(inside, depth))


def _field(text: str, depth: int) -> pa.Field:
    name, colon, kind = text.partition(": ")
    if not colon:
        raise ValueError(f"{text[:100]!r} is no field")
    return pa.field(name, _parse(kind.removesuffix(" not null"), depth), nullable=not kind.endswith(" not null"))


def _split(text: str) -> Iterable[str]:
    """Parts between commas that are in no brackets."""
    parts, begin, depth = [], 0, 0
    for place, sign in enumerate(text):
        depth += (sign in "<([") - (sign in ">)]")
        if depth == 0 and text.startswith(", ", place):
            parts.append(text[begin:place])
            begin = place + 2
    return [*parts, text[begin:]] if text else []


_MAKERS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], int], pa.DataType]], ...] = (
    (_ZONED, lambda match, _: pa.timestamp(match[1], match[2])),
    (_DECIMAL, _decimal),
    (_BYTES, lambda match, _: pa.binary(int(match[1]))),
    (_FIXED_LIST, lambda match, depth: pa.list_(_field(match[1], depth), int(match[2]))),
    (_NESTED, _nested),
)
