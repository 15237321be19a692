"""Figures of one epoch, as they stand in its event: per stage, per edge, and per subtask in columns.

Numbers only, so that an event stays short and can be printed even from a folder of unknown origin. Every
field has a default, which is not written: a history may be older than the field, and most figures are zero.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]
Counts: TypeAlias = tuple[Count, ...]

SUBTASKS_MAX = 32
"""Of a stage with more subtasks the slowest are told one by one: an event must not grow with the cluster."""


class BytesWritten(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint cost on storage (independent of the backlog)."""

    segments: Count = 0
    state: Count = 0
    manifest: Count = 0

    @property
    def total(self) -> int:
        return self.segments + self.state + self.manifest


class EdgeFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One edge in one epoch. `rows_in` were accepted, from the source or from the stage before."""

    rows_in: Count = 0
    rows_processed: Count = 0
    rows_spilled: Count = 0
    """Rows that were left behind the barrier and written down as in-flight data; not those handed on by a stage."""
    bytes_spilled: Count = 0
    bytes_written: Count = 0
    """Of segments that the stage before handed on."""
    rows_in_flight: Count = 0
    """After the epoch."""
    bytes_in_flight: Count = 0
    watermark: Int64 | None = None
    """In microseconds."""


class SubtaskFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Columns of equal length, one entry per subtask that ran (the slowest `SUBTASKS_MAX`); times in microseconds."""

    subtask: Counts = ()
    rows: Counts = ()
    rows_out: Counts = ()
    elapsed_us: Counts = ()
    opening_us: Counts = ()
    waiting_us: Counts = ()
    """For rows that Spark had to deliver."""
    stepping_us: Counts = ()
    writing_us: Counts = ()
    """Rows behind the barrier, results, state."""
    barrier_us: Counts = ()
    """How long after the barrier it stopped."""


class StageFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One stage in one epoch. Times are those of the driver, or of the slowest subtask."""

    job_s: Seconds = 0.0
    """The Spark job, as the driver saw it."""
    outside_s: Seconds = 0.0
    """Of it, before, between and after subtasks: planning, the source, the shuffle, scheduling."""
    opening_s: Seconds = 0.0
    waiting_s: Seconds = 0.0
    stepping_s: Seconds = 0.0
    writing_s: Seconds = 0.0
    launched: Count = 0
    """Subtasks that had work."""
    rows: Count = 0
    """Processed."""
    rows_max: Count = 0
    """Of one subtask; `skew` compares it with the mean."""
    rows_out: Count = 0
    bytes_in: Count = 0
    """Delivered by Spark, as Arrow."""
    bytes_out: Count = 0
    row_cost_s: Seconds | None = None
    barrier_delay_s: Seconds = 0.0
    memory_bytes: Count = 0
    """Of the largest Python worker."""
    sinks: dict[str, Count] = {}
    """Rows written, by sink."""
    subtasks: SubtaskFigures = SubtaskFigures()

    @property
    def skew(self) -> float | None:
        """How many times the mean the busiest subtask had to do.

        >>> StageFigures(launched=4, rows=100, rows_max=50).skew
        2.0
        """
        return self.rows_max * self.launched / self.rows if self.rows and self.launched else None
