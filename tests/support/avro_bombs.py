"""Avro files of a few bytes that take a decoder's stack, or all time and memory there is."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Any


def container(schema: Any, count: int = 1, body: bytes = b"", codec: bytes = b"null") -> bytes:
    """An Avro file with one block."""
    sync = b"s" * 16
    header = {b"avro.schema": json.dumps(schema).encode(), b"avro.codec": codec}
    pairs = b"".join(long(len(part)) + part for pair in header.items() for part in pair)
    return b"Obj\x01" + long(len(header)) + pairs + long(0) + sync + long(count) + long(len(body)) + body + sync


def long(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def record(name: str, kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": "a", "type": kind}]}


def _chain(links: int) -> dict[str, Any]:
    """A type that holds another one, which holds another one: deep without nesting in the schema."""
    kinds: list[Any] = [record("r0", "int"), *(record(f"r{n}", f"r{n - 1}") for n in range(1, links))]
    return {"type": "record", "name": "top", "fields": [{"name": f"f{n}", "type": k} for n, k in enumerate(kinds)]}


def _zeros() -> bytes:
    """A part that ends with a flush refers to nothing before it, so it may be repeated."""
    made = zlib.compressobj(9, zlib.DEFLATED, -15)
    return (made.compress(bytes(1 << 20)) + made.flush(zlib.Z_FULL_FLUSH)) * 300 + made.flush()


BOMBS: dict[str, Callable[[], bytes]] = {
    "array of nulls": lambda: container(record("r", {"type": "array", "items": "null"}), body=long(1 << 40) + long(0)),
    "array of empty records": lambda: container(
        record("r", {"type": "array", "items": {"type": "record", "name": "s", "fields": []}}), body=long(1 << 40)
    ),
    "array of no bytes": lambda: container(
        record("r", {"type": "array", "items": {"type": "fixed", "name": "s", "size": 0}}), body=long(1 << 40)
    ),
    "record called array": lambda: container(
        {
            "type": "record",
            "name": "r",
            "fields": [
                {"name": "a", "type": record("array", "int")},
                {"name": "b", "type": {"type": "array", "items": "null"}},
            ],
        },
        body=long(1) + long(1 << 40) + long(0),
    ),
    "records of nulls": lambda: container(record("r", "null"), count=1 << 40),
    "record in itself": lambda: container(record("r", "r")),
    "list of records": lambda: container(record("r", ["null", "r"]), body=b"\2" * (4 << 20) + b"\0"),
    "chain of records": lambda: container(_chain(5_000), body=b"\2" * 5_000),
    "decimal of many digits": lambda: container(
        record("r", {"type": "bytes", "logicalType": "decimal", "precision": 9}), body=long(1 << 22) + b"\1" * (1 << 22)
    ),
    "zeros": lambda: container(record("r", "string"), body=_zeros(), codec=b"deflate"),
}
