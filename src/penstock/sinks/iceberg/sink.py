"""Apache Iceberg tables as a sink: append, partitioned by any transform or not, exactly once.

A commit is one snapshot. Its summary names our commit user and checkpoint, and the same catalog commit writes them into
a property of the table, which no expiry of snapshots takes away.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import ConfigError
from penstock.protocol.ids import CheckpointId
from penstock.sinks.base import Committable, Routing, SinkDefaults, TableMark, WriterContext
from penstock.sinks.lake.keys import KeyRouting, as_names, check_arguments, check_sizes
from penstock.sinks.lake.merge import MERGE_BYTES_MAX
from penstock.sinks.parquet.files import TARGET_BYTES
from penstock.sinks.upkeep import Keeper, Upkeep

if TYPE_CHECKING:
    from penstock.sinks.iceberg.commit import IcebergCommitter
    from penstock.sinks.iceberg.layout import TableLayout
    from penstock.sinks.iceberg.writer import IcebergWriter


@dataclass(frozen=True)
class Iceberg(SinkDefaults):
    """A table of an Iceberg catalog; `catalog` has pyiceberg's properties, or is a name that its configuration knows.

    `partition_by` are columns, or transforms such as ``day(time)``, ``bucket(16, user)``, ``truncate(4, name)``. It and
    `properties` are for a table that does not exist yet. `evolve_table` adds columns that the stream has and the table
    lacks. `upkeep` compacts small files and expires old snapshots in the background; see `Upkeep`.

    With `primary_key` a row replaces the one with the same key; `row_kind` names a column that says which rows are
    deleted. The driver then rewrites the files that hold a changed key, up to `merge_bytes_max` in one commit.
    `sort_by` orders the rows of a file, by default by the key, so that readers skip parts of it.

    >>> Iceberg({"type": "sql", "uri": "sqlite:////data/catalog.db", "warehouse": "/data"}, "shop.clicks").description
    'Iceberg table shop.clicks'
    """

    catalog: Mapping[str, str] | str = field(repr=False, hash=False)
    table: str
    _: KW_ONLY
    create: bool = True
    partition_by: Sequence[str] = ()
    properties: Mapping[str, str] | None = field(default=None, hash=False)
    evolve_table: bool = False
    target_file_size: int = TARGET_BYTES
    primary_key: Sequence[str] = ()
    row_kind: str | None = None
    sort_by: Sequence[str] = ()
    merge_bytes_max: int = MERGE_BYTES_MAX
    name: str | None = None
    upkeep: Upkeep | bool = True
    _layout: TableLayout | None = field(default=None, repr=False, hash=False)

    def __post_init__(self) -> None:
        require_pyiceberg(f"Iceberg(..., {self.table!r})")
        for option in ("partition_by", "primary_key", "sort_by"):
            object.__setattr__(self, option, as_names(getattr(self, option)))
        check_arguments(self.description, self.primary_key, self.row_kind)
        if self.table.count(".") < 1:
            raise ConfigError(
                f"{self.table!r} is not the name of a table",
                cause="a table is named by its namespace and its own name",
                next_step='write it as "namespace.table"',
            )
        check_sizes(self.upkeep, self.target_file_size, self.merge_bytes_max)

    @property
    def description(self) -> str:
        return f"Iceberg table {self.table}"

    def mark(self) -> TableMark | None:
        """The table's name, and a number made of its UUID, which stays with it when it is renamed."""
        from penstock.sinks.iceberg.catalog import find_table

        table = find_table(self.catalog, self.table)
        made = None if table is None else int(table.metadata.table_uuid.int % (1 << 52))
        return None if table is None else TableMark(name=self.table, made_at_ms=made)

    def routing(self, schema: pa.Schema) -> Routing | None:
        """Rows of one key go to one writer."""
        del schema
        return KeyRouting(tuple(self.primary_key)) if self.primary_key else None

    def check(self, schema: pa.Schema) -> None:
        """Makes the table if it is missing, or verifies that it fits the stream.

        Raises: `TableMismatch`, `TableRefused`, `StorageFailed`.
        """
        from penstock.sinks.iceberg.check import check_table

        check_table(self, schema)

    def taken_over(self, checkpoint: CheckpointId, pending: Sequence[Committable]) -> Iceberg:
        """The same sink, whose writers know the table: they never ask the catalog."""
        del checkpoint, pending
        from penstock.sinks.iceberg.layout import layout_of

        return dataclasses.replace(self, _layout=layout_of(self.catalog, self.table))

    def open_writer(self, context: WriterContext, schema: pa.Schema) -> IcebergWriter:
        require_pyiceberg(f"The writer of {self.description}")
        from penstock.sinks.iceberg.layout import layout_of
        from penstock.sinks.iceberg.writer import IcebergWriter

        layout = self._layout or layout_of(self.catalog, self.table)
        return IcebergWriter(self, layout, schema, context)

    def open_committer(self, commit_user: str) -> IcebergCommitter:
        from penstock.sinks.iceberg.commit import IcebergCommitter

        return IcebergCommitter(self, commit_user)

    def open_keeper(self, commit_user: str, pending: Callable[[], Iterable[Committable]]) -> Keeper | None:
        """Looks after the table while the query runs; None when `upkeep` is off."""
        del commit_user
        if self.upkeep is False:
            return None
        from penstock.sinks.iceberg.keeper import IcebergKeeper

        return IcebergKeeper(self, Upkeep() if self.upkeep is True else self.upkeep, pending)


def require_pyiceberg(what: str) -> None:
    """Raises: `ConfigError`."""
    if find_spec("pyiceberg") is None:
        raise ConfigError(
            f"{what} needs the package pyiceberg, which is not installed",
            cause="Iceberg tables are an extra of Penstock",
            next_step="pip install 'penstock[iceberg]', on the driver and on the executors",
        )
