"""Checks what a record batch of a file claims. A checksum proves that bytes were not changed, not that they are
harmless.

Arrow trusts the offsets inside a batch: values beyond a buffer would be read from whatever lies there. And it asks for
as much memory as a compressed buffer claims to need. So sizes are looked at before a batch is decoded, and offsets
after it. Texts are not checked to be UTF-8: rows of users may hold others, and they do no harm.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

EXPANSION_MAX = 256
"""lz4 turns a byte into 255 at most; no file of ours is compressed by anything stronger."""
EXPANDED_BYTES_MAX = 64 << 20
"""Up to this size any claim is allowed, so that small batches cost nothing."""

_HEADER = struct.Struct("<Ii")  # continuation marker, length of the metadata
_CONTINUATION = 0xFFFFFFFF
_RECORD_BATCH = 3
_LENGTH, _BUFFERS, _COMPRESSION = 0, 2, 3
_HEADER_TYPE, _HEADER_TABLE, _BODY_LENGTH = 1, 2, 3
_INT16, _INT32, _INT64 = struct.Struct("<H"), struct.Struct("<i"), struct.Struct("<q")
_PLAIN = -1

Fault = str
"""What is wrong, for people."""
Check = Callable[[pa.Array], Fault | None]


def fault_in_message(message: Any, rows: int) -> Fault | None:
    """Why a message must not be decoded; None if it is a batch of `rows` rows with buffers that fit.

    The layout is that of Arrow's flatbuffers (Message.fbs); reading it here takes some microseconds.
    """
    data = memoryview(message).cast("B")
    try:
        return _fault_in_message(data, rows)
    except (struct.error, ValueError, LookupError) as error:
        return f"its metadata cannot be read: {error}"


def _fault_in_message(data: memoryview, rows: int) -> Fault | None:
    marker, length = _HEADER.unpack_from(data)
    body = _HEADER.size + length
    if marker != _CONTINUATION or not 0 < length <= data.nbytes - _HEADER.size:
        return f"metadata of {length} bytes does not fit into {data.nbytes} bytes"
    meta = data[_HEADER.size : body]
    message = _table(meta, 0)
    kind = _field(meta, message, _HEADER_TYPE)
    batch = _field(meta, message, _HEADER_TABLE)
    if not kind or meta[kind] != _RECORD_BATCH or not batch:
        return "it is no record batch"
    batch = _table(meta, batch)
    claimed = _integer(meta, _field(meta, batch, _LENGTH))
    if claimed != rows:
        return f"it has {claimed} rows, its index says {rows}"
    if (body_bytes := _integer(meta, _field(meta, message, _BODY_LENGTH))) != data.nbytes - body:
        return f"its buffers take {body_bytes} bytes, {data.nbytes - body} are there"
    buffers = _buffers(meta, _field(meta, batch, _BUFFERS))
    return _fault_in_sizes(data[body:], buffers, compressed=bool(_field(meta, batch, _COMPRESSION)))


def _fault_in_sizes(body: memoryview, buffers: tuple[int, ...], *, compressed: bool) -> Fault | None:
    expanded = 0
    for offset, length in zip(buffers[::2], buffers[1::2], strict=True):
        if offset < 0 or length < 0 or offset + length > body.nbytes:
            return f"a buffer of {length} bytes at {offset} does not fit into {body.nbytes} bytes"
        if compressed and length:
            if length < _INT64.size:
                return f"a compressed buffer has {length} bytes only"
            claimed = _INT64.unpack_from(body, offset)[0]
            if claimed < _PLAIN:
                return f"a buffer claims to have {claimed} bytes"
            expanded += claimed
    if expanded > max(EXPANDED_BYTES_MAX, EXPANSION_MAX * body.nbytes):
        return f"{body.nbytes} bytes claim to become {expanded}"
    return None


def _table(meta: memoryview, at: int) -> int:
    """Where the table is to which the offset at `at` leads."""
    return at + int(_INT32.unpack_from(meta, at)[0])


def _field(meta: memoryview, table: int, number: int) -> int:
    """Where a field of a table is; 0 if it is not there."""
    if table < 0:
        raise ValueError(f"a table at {table}")
    fields = table - _INT32.unpack_from(meta, table)[0]
    slot = 4 + 2 * number
    if fields < 0:
        raise ValueError(f"fields at {fields}")
    if slot + 2 > _INT16.unpack_from(meta, fields)[0]:
        return 0
    offset: int = _INT16.unpack_from(meta, fields + slot)[0]
    return table + offset if offset else 0


def _integer(meta: memoryview, at: int) -> int:
    return int(_INT64.unpack_from(meta, at)[0]) if at else 0


def _buffers(meta: memoryview, at: int) -> tuple[int, ...]:
    """Offset and length of each buffer, one after the other."""
    if not at:
        return ()
    vector = _table(meta, at)
    count = _INT32.unpack_from(meta, vector)[0]
    if vector < 0 or not 0 <= count <= meta.nbytes // 16:
        raise ValueError(f"{count} buffers")
    return struct.unpack_from(f"<{2 * count}q", meta, vector + 4)


class BatchCheck:
    """Looks at decoded batches of one schema; columns of a fixed width cost nothing."""

    def __init__(self, schema: pa.Schema) -> None:
        checks = [(number, check_of(field.type)) for number, field in enumerate(schema)]
        self._checks = [(number, check) for number, check in checks if check is not None]
        self._required = [number for number, field in enumerate(schema) if not field.nullable]

    def fault(self, batch: pa.RecordBatch) -> Fault | None:
        """Why a batch must not be used; None: every offset stays inside its buffer."""
        try:
            batch.validate()  # lengths of columns and buffers, the first and the last of all offsets
            for column in batch.columns:
                if column.null_count and _miscounts_nulls(column):
                    return "a column has more or fewer nulls than it says"
            for number, check in self._checks:
                why = check(batch.column(number))
                if why is not None:
                    return f"column {batch.schema.field(number).name!r}: {why}"
        except (pa.ArrowException, ValueError) as error:
            return str(error)
        for number in self._required:
            if batch.column(number).null_count:
                return f"column {batch.schema.field(number).name!r} has nulls, and may not"
        return None


def _miscounts_nulls(array: pa.Array) -> bool:
    """Whether a batch claims a wrong number of nulls. Arrow's kernels allocate memory by that number; a slice makes
    Arrow count."""
    validity = array.buffers()[0]
    if validity is None:
        return not pa.types.is_null(array.type)
    # The first bit is looked at in its buffer: to ask for the value would follow its offsets.
    first_is_null = not validity[array.offset >> 3] >> (array.offset & 7) & 1
    return bool(array.slice(1).null_count + first_is_null != array.null_count)


def check_of(kind: pa.DataType) -> Check | None:
    """The check for arrays of a type; None if `validate` finds everything that can be wrong."""
    types = pa.types
    if types.is_binary(kind) or types.is_string(kind):
        return _check_bytes32
    if types.is_large_binary(kind) or types.is_large_string(kind):
        return _check_bytes64
    if types.is_list(kind) or types.is_map(kind) or types.is_large_list(kind):
        width = np.int64 if types.is_large_list(kind) else np.int32
        inner = check_of(kind.field(0).type if not types.is_map(kind) else _entries(kind))
        return lambda array: _check_list(array, np.dtype(width), inner)
    if types.is_struct(kind):
        inners = [(number, check_of(kind.field(number).type)) for number in range(kind.num_fields)]
        return _check_struct([(number, inner) for number, inner in inners if inner is not None])
    if types.is_fixed_size_list(kind):
        inner = check_of(kind.value_type)
        return None if inner is None else lambda array: inner(array.values)
    if types.is_primitive(kind) or types.is_null(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind):
        return None
    return _check_fully


def _entries(kind: pa.MapType) -> pa.DataType:
    return pa.struct([kind.key_field, kind.item_field])


def _check_bytes32(array: pa.Array) -> Fault | None:
    return _fault_in_offsets(array, np.dtype(np.int32), -1)


def _check_bytes64(array: pa.Array) -> Fault | None:
    return _fault_in_offsets(array, np.dtype(np.int64), -1)


def _check_list(array: pa.Array, width: np.dtype[Any], inner: Check | None) -> Fault | None:
    # A map's entries are no child that can be asked for by one name.
    values = array.values if not pa.types.is_map(array.type) else None
    if values is None:
        keys, items = array.keys, array.items
        why = _fault_in_offsets(array, width, min(len(keys), len(items)))
        for part in (keys, items):
            check = check_of(part.type)
            why = why or (None if check is None else check(part))
        return why
    if values.null_count and _miscounts_nulls(values):
        return "its items have more or fewer nulls than it says"
    return _fault_in_offsets(array, width, len(values)) or (None if inner is None else inner(values))


def _check_struct(inners: list[tuple[int, Check]]) -> Check | None:
    if not inners:
        return None

    def check(array: pa.StructArray) -> Fault | None:
        for number, inner in inners:
            field = array.field(number)
            if field.null_count and _miscounts_nulls(field):
                return "a field has more or fewer nulls than it says"
            if (why := inner(field)) is not None:
                return why
        return None

    return check


def _check_fully(array: pa.Array) -> Fault | None:
    """Types that rows seldom have: views, unions, run ends."""
    array.validate(full=True)
    return None


def _fault_in_offsets(array: pa.Array, width: np.dtype[Any], values: int) -> Fault | None:
    """`values`: how many there are to point at; -1: the bytes of the last buffer."""
    if not len(array):
        return None
    buffers = array.buffers()
    if buffers[1] is None:
        return "it has no offsets"
    offsets: npt.NDArray[Any] = np.frombuffer(buffers[1], width, len(array) + 1, array.offset * width.itemsize)
    if values < 0:
        values = 0 if buffers[2] is None else buffers[2].size
    if offsets[0] < 0 or offsets[-1] > values or not (offsets[1:] >= offsets[:-1]).all():
        return f"its offsets do not ascend from 0 to {values}"
    return None
