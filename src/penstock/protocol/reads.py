"""What a reader is asked to read of a segment, and what it tells about it afterwards.

A cursor is an absolute row number of the segment: of the range's key groups, all rows before it are consumed.
"""

from __future__ import annotations

import msgspec

from penstock.protocol.ids import NO_CHECKPOINT, CheckpointId


class ReadSpan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Read the rows of key groups `lo` to `hi` - 1 from row number `cursor` on."""

    path: str
    checksum: str
    lo: int
    hi: int
    cursor: int = 0
    watermark: int | None = None
    """In effect for these rows."""
    arrival: CheckpointId = NO_CHECKPOINT
    """As in the segment: what is made of these rows keeps it."""


class SpanReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """How far a reader got in a span: `consumed` of the `rows_at_open` rows at or after `start_cursor`."""

    path: str
    lo: int
    hi: int
    start_cursor: int
    cursor: int
    rows_at_open: int
    consumed: int

    @property
    def rows_left(self) -> int:
        return self.rows_at_open - self.consumed
