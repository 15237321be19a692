"""A transaction of pyiceberg that does not copy the table's metadata whenever it is asked for it.

The library copies all snapshots of the table, deeply, more than ten times for one commit and twice for each snapshot
that expires. With a hundred snapshots that was four fifths of the time of a commit.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update.snapshot import ExpireSnapshots


class OneCopy(Transaction):
    """Makes the metadata once for each set of changes. Whoever asks reads it and changes nothing in it."""

    _made: tuple[TableMetadata, tuple[Any, ...], TableMetadata] | None = None
    adds_to: int | None = None
    """The partition spec of the files that are added, where it is not the table's newest one."""

    @property
    def table_metadata(self) -> TableMetadata:
        made = self._metadata()
        return made if self.adds_to is None else made.model_copy(update={"default_spec_id": self.adds_to})

    def _metadata(self) -> TableMetadata:
        base, updates = self._table.metadata, self._updates
        if not updates:
            return base
        made = self._made
        if made is None or made[0] is not base or made[1] is not updates:
            made = self._made = (base, updates, super().table_metadata)
        return made[2]


def expire(table: Any, snapshots: list[int]) -> None:
    """Raises: `CommitFailedException` when a commit came first."""
    ExpireSnapshots(OneCopy(table, autocommit=True)).by_ids(snapshots).commit()
