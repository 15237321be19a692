"""The index of an Arrow file, and the trailer that finds it: the bytes behind the Arrow stream.

The index is JSON, so that any tool can read it; checksums are xxh3_64 in 16 hexadecimal digits.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

ARROW_FILE_VERSION = 1

MAGIC = b"PENSTOCK"
TRAILER = struct.Struct("<IQ8s")  # length of the index, its xxh3_64, magic

Compression = Literal["lz4", "zstd"]
Meta = dict[str, str | int | None]


class BatchInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a record batch message is; its `groups` are the key groups that occur, `counts` the rows of each.

    Both are empty when the batch was written without key groups.
    """

    offset: int
    length: int
    rows: int
    checksum: str
    groups: list[int]
    counts: list[int]

    def rows_in(self, lo: int, hi: int) -> int:
        """How many rows have a key group from `lo` to `hi` - 1."""
        assert self.groups or not self.rows, "the batch was written without key groups"
        return sum(self.counts[bisect_left(self.groups, lo) : bisect_left(self.groups, hi)])


class SchemaInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The schema message, which begins the file."""

    length: int
    checksum: str


class Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What follows the Arrow stream."""

    version: int
    kind: str
    compression: Compression | None
    schema: SchemaInfo
    batches: list[BatchInfo]
    meta: Meta


class IndexVersion(msgspec.Struct, frozen=True):
    """Decodes the index of any version."""

    version: int


def seal(encoded: bytes) -> bytes:
    """The trailer of an encoded index."""
    return TRAILER.pack(len(encoded), xxhash.xxh3_64_intdigest(encoded), MAGIC)


def checksum_of(data: Any) -> str:
    """The checksum of anything with bytes, as 16 hexadecimal digits."""
    return f"{xxhash.xxh3_64_intdigest(data):016x}"


def histogram(groups: npt.NDArray[Any]) -> tuple[list[int], list[int]]:
    """The key groups that occur, and how many rows each has."""
    counts = np.bincount(groups)
    present = np.flatnonzero(counts)
    return present.tolist(), counts[present].tolist()
