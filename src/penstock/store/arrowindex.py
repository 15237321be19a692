"""The index of an Arrow file, and the trailer that finds it: the bytes behind the Arrow stream.

The index is JSON, so that any tool can read it; checksums are xxh3_64 in 16 hexadecimal digits.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from operator import lt
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

ARROW_FILE_VERSION = 1

MAGIC = b"PENSTOCK"
TRAILER = struct.Struct("<IQ8s")  # length of the index, its xxh3_64, magic

Compression = Literal["lz4", "zstd"]
Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Meta = dict[str, str | Number | None]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**48)]
Group = Annotated[int, msgspec.Meta(ge=0, lt=1 << 15)]


class BatchInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a record batch message is; its `groups` are the key groups that occur, `counts` the rows of each.

    Both are empty when the batch was written without key groups.
    """

    offset: Count
    length: Count
    rows: Count
    checksum: str
    groups: list[Group]
    counts: list[Count]

    def rows_in(self, lo: int, hi: int) -> int:
        """How many rows have a key group from `lo` to `hi` - 1."""
        assert self.groups or not self.rows, "the batch was written without key groups"
        return sum(self.counts[bisect_left(self.groups, lo) : bisect_left(self.groups, hi)])

    @property
    def adds_up(self) -> bool:
        """Whether the histogram is one: ascending key groups, and all rows of the batch in them."""
        return (
            len(self.groups) == len(self.counts)
            and sum(self.counts) == (self.rows if self.groups else 0)
            and all(map(lt, self.groups, self.groups[1:]))
        )


class SchemaInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The schema message, which begins the file."""

    length: Count
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
