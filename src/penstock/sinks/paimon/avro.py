"""Avro files of a table's metadata, checked before a decoder sees them, because they may come from anywhere.

A decoder does what the schema inside the file says. fastavro's has no limits: a schema that refers to itself overflows
its stack, an array of nulls takes no bytes and never ends, and a few bytes expand to gigabytes. Here every value takes
a byte at least and nesting is shallow, so the size of a file, expanded, bounds time and memory.
"""

from __future__ import annotations

import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import fastavro
import pyarrow as pa

from penstock.errors import CorruptFile

MAGIC = b"Obj\x01"
EXPANDED_BYTES_MAX = 256 << 20
"""Of all blocks of a file together."""

_HEADER_BYTES_MAX = 1 << 20
_DEPTH_MAX = 16
_CHUNK_BYTES = 1 << 20
_SYNC_BYTES = 16
_XZ_BYTES_MAX = 256 << 20  # its dictionary, which the file asks for
_TAKES_BYTES = {"boolean", "int", "long", "float", "double", "bytes", "string", "enum"}
_BUILT_IN = _TAKES_BYTES | {"null", "record", "error", "request", "array", "map", "fixed", "union", "error_union"}
"""What a decoder takes for itself, also where a file has given such a name to a type of its own."""
_TIMES = ("timestamp-", "local-timestamp-", "date", "time-")
"""Logical types that cost no more than their numbers do; a decimal of many digits does."""


def require_bounded(data: bytes, path: str) -> None:
    """Raises: `CorruptFile` for a file whose decoding could take unbounded time, stack or memory."""
    try:
        cursor = _Cursor(data, len(MAGIC))
        codec = _header(cursor)
        _depth(fastavro.block_reader(io.BytesIO(data[: cursor.place])).writer_schema, {})
        expanded = 0
        for block in _blocks(cursor):
            for size in _EXPANDED[codec](block):
                expanded += size
                if expanded > EXPANDED_BYTES_MAX:
                    raise ValueError(f"it expands to more than {EXPANDED_BYTES_MAX} bytes")
    except Exception as error:
        raise CorruptFile(
            f"{path} is no Avro file of a table: {type(error).__name__}: {error}",
            cause="the file is damaged, or was made to break its readers",
            next_step="restore the table from a copy",
            path=path,
        ) from error


class _Cursor:
    """A place in bytes, which moves as they are read."""

    def __init__(self, data: bytes, place: int) -> None:
        self._data, self.place = memoryview(data), place

    @property
    def at_end(self) -> bool:
        return self.place >= len(self._data)

    def take(self, length: int) -> memoryview:
        if not 0 <= length <= len(self._data) - self.place:
            raise EOFError(f"{length} bytes at {self.place} of {len(self._data)}")
        self.place += length
        return self._data[self.place - length : self.place]

    def long(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            if shift > 63:
                raise ValueError("a number of more than 64 bits")


def _header(cursor: _Cursor) -> str:
    """The codec. What the specification allows and no writer does is refused, so that no two readers disagree."""
    found: dict[bytes, bytes] = {}
    while (count := cursor.long()) != 0:
        for _ in range(count):
            key = bytes(cursor.take(cursor.long()))
            if key in found or cursor.place > _HEADER_BYTES_MAX:
                raise ValueError(f"a header with {key[:40]!r} twice, or of more than {_HEADER_BYTES_MAX} bytes")
            found[key] = bytes(cursor.take(cursor.long()))
        if count < 0:
            raise ValueError("a header in parts")
    cursor.take(_SYNC_BYTES)
    if cursor.place > _HEADER_BYTES_MAX:
        raise ValueError(f"a header of {cursor.place} bytes")
    return found.get(b"avro.codec", b"null").decode()


def _depth(schema: Any, known: dict[str, int]) -> int:
    """How deep values nest; `known` are the named types that are complete, so none can hold itself.

    Raises: `ValueError` for a type whose values may take no bytes, or hold themselves, or nest too deep.
    """
    if isinstance(schema, list):
        parts = [branch for branch in schema if branch not in ("null", {"type": "null"})]
        return _deeper(parts, known)
    if isinstance(schema, str):
        schema = {"type": schema}
    kind = schema["type"]
    if "logicalType" in schema and not str(schema["logicalType"]).startswith(_TIMES):
        raise ValueError(f"a {schema['logicalType']!r}")
    if isinstance(kind, (list, dict)):
        return _deeper([kind], known)
    if kind not in _BUILT_IN and kind in known:
        return known[kind]
    match kind:
        case "record" | "error" if schema["fields"]:
            depth = _deeper([field["type"] for field in schema["fields"]], known)
        case "array":
            return _deeper([schema["items"]], known)
        case "map":
            return _deeper([schema["values"]], known)
        case "fixed" if schema["size"] > 0:
            depth = 1
        case _ if kind in _TAKES_BYTES:
            depth = 1
        case _:
            raise ValueError(f"a value of type {kind!r} without bytes, or inside of itself")
    if "name" in schema:
        known[schema["name"]] = depth
    return depth


def _deeper(parts: list[Any], known: dict[str, int]) -> int:
    depth = 1 + max((_depth(part, known) for part in parts), default=0)
    if depth > _DEPTH_MAX:
        raise ValueError(f"more than {_DEPTH_MAX} levels")
    return depth


def _blocks(cursor: _Cursor) -> Iterator[memoryview]:
    while not cursor.at_end:
        cursor.long()  # as many records; each takes a byte
        yield cursor.take(cursor.long())
        cursor.take(_SYNC_BYTES)


def _deflated(block: memoryview) -> Iterator[int]:
    made = zlib.decompressobj(-15)
    rest: bytes | memoryview = block
    while rest and not made.eof:  # a checksum may follow, which no decoder looks at
        yield len(made.decompress(rest, _CHUNK_BYTES))
        rest = made.unconsumed_tail


def _xz(block: memoryview) -> Iterator[int]:
    rest = bytes(block)
    while rest:
        made = lzma.LZMADecompressor(memlimit=_XZ_BYTES_MAX)
        yield len(made.decompress(rest, _CHUNK_BYTES))
        while not made.eof and not made.needs_input:
            yield len(made.decompress(b"", _CHUNK_BYTES))
        rest = made.unused_data


def _snappy(block: memoryview) -> Iterator[int]:
    """It begins with the size that it claims to have, which a decoder asks memory for."""
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    yield size


def _arrow(codec: str) -> Callable[[memoryview], Iterator[int]]:
    def sizes(block: memoryview) -> Iterator[int]:
        with pa.CompressedInputStream(pa.BufferReader(block), codec) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                yield len(chunk)

    return sizes


_EXPANDED: dict[str, Callable[[memoryview], Iterator[int]]] = {
    "null": lambda block: iter((len(block),)),
    "deflate": _deflated,
    "xz": _xz,
    "snappy": _snappy,
    "zstandard": _arrow("zstd"),
    "bzip2": _arrow("bz2"),
}
