"""A sink that accepts and drops everything, for measuring a pipeline without its table.

Nothing is written, so there is nothing to commit: `prepare` hands over no committables and no table is ever asked.
"""

# ruff: noqa: ARG002 - a sink that does nothing has no use for its arguments

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.protocol.ids import Generation
from penstock.sinks.base import CommitPermit, CommitReceipt, Committable, SinkDefaults, TableHistory, WriterContext


@dataclass(frozen=True, slots=True)
class Discard(SinkDefaults):
    """Drops every row, as Spark's ``noop`` format does.

    >>> Discard().description
    'discard'
    """

    name: str | None = None

    @property
    def description(self) -> str:
        return "discard"

    def check(self, schema: pa.Schema) -> None:
        """Every schema can be dropped."""

    def open_writer(self, context: WriterContext, schema: pa.Schema) -> DiscardWriter:
        return DiscardWriter()

    def open_committer(self, commit_user: str) -> DiscardCommitter:
        return DiscardCommitter()


class DiscardWriter:
    def write(self, batch: pa.RecordBatch) -> None:
        """Drops the batch."""

    def prepare(self) -> list[Committable]:
        return []

    def abort(self) -> None:
        """Nothing was written."""


class DiscardCommitter:
    def fence(self, generation: Generation) -> None:
        """There is no table to fence."""

    def commits(self, oldest_snapshot: int | None, limit: int, floor: int = 0) -> TableHistory:
        return TableHistory()

    def holds(self, committables: Sequence[Committable]) -> bool:
        return False

    def commit(
        self,
        permit: CommitPermit,
        committables: Sequence[Committable],
        *,
        watermark: int | None,
        properties: Mapping[str, str],
        still_leader: Callable[[], bool],
    ) -> CommitReceipt:
        assert not committables, "a discarding writer hands over nothing"
        return CommitReceipt(permit.checkpoint, snapshot=None, rows=0, files=0)

    def missing_files(self, committables: Sequence[Committable]) -> tuple[str, ...]:
        return ()

    def partitions(self, committables: Sequence[Committable]) -> tuple[str, ...]:
        return ()

    def remove(self, files: Sequence[str]) -> None:
        assert not files, "a discarding writer announces nothing"

    def abort(self, committables: Sequence[Committable]) -> None:
        assert not committables, "a discarding writer hands over nothing"

    def close(self) -> None:
        """Nothing is open."""
