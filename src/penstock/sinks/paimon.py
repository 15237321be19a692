"""Apache Paimon tables as a sink: append tables without buckets, partitioned or not, exactly once.

pypaimon takes a second to import, so it is imported when a table is first touched, not when a pipeline is described.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import ConfigError, TableMismatch
from penstock.sinks.base import Committable, WriterContext
from penstock.sinks.paimon_local import as_local
from penstock.sinks.upkeep import Keeper, Upkeep

if TYPE_CHECKING:
    from penstock.sinks.paimon_commit import PaimonCommitter
    from penstock.sinks.paimon_writer import PaimonWriter

_TABLE_NAME = re.compile(r"[^.$`/\\\s]+\.[^.$`/\\\s]+")


@dataclass(frozen=True)
class Paimon:
    """A table in a Paimon warehouse, which is a local folder or a URL.

    On a local folder snapshots are published create-if-absent, so any number of Penstock drivers may commit to one
    table. An object store without a catalog has no such operation: let one process at a time commit there.

    `options` are the table's, used when it is made; a table that exists keeps its own.

    `upkeep` merges manifests, compacts small files and expires snapshots in the background; see `Upkeep`. Only tables
    in a local folder get it.

    >>> Paimon("/data/lake", "shop.clicks", partition_by=["day"]).description
    'Paimon table shop.clicks in /data/lake'
    """

    warehouse: str
    table: str
    _: KW_ONLY
    create: bool = True
    partition_by: Sequence[str] = ()
    primary_key: Sequence[str] = ()
    options: Mapping[str, str] | None = field(default=None, hash=False)
    name: str | None = None
    upkeep: Upkeep | bool = True

    def __post_init__(self) -> None:
        if not _TABLE_NAME.fullmatch(self.table):
            raise ConfigError(
                f"{self.table!r} is not the name of a table",
                cause="a table is named by its database and its own name",
                next_step='write it as "database.table"; branches and system tables ("$") cannot be written',
            )
        if not isinstance(self.upkeep, bool | Upkeep):
            raise ConfigError(
                f"upkeep={self.upkeep!r}", cause="upkeep takes True, False or a pen.Upkeep(...)", next_step="change it"
            )
        # Spark's workers run in another folder, so a relative path would mean another warehouse there.
        object.__setattr__(self, "warehouse", as_local(self.warehouse) or self.warehouse)
        object.__setattr__(self, "partition_by", _names(self.partition_by))
        object.__setattr__(self, "primary_key", _names(self.primary_key))
        object.__setattr__(self, "options", {key: str(value) for key, value in (self.options or {}).items()})

    @property
    def description(self) -> str:
        return f"Paimon table {self.table} in {self.warehouse}"

    def check(self, schema: pa.Schema) -> None:
        """Makes the table if it is missing, or verifies that it fits the stream.

        Raises: `TableMismatch`, `TableRefused`, `StorageFailed`.
        """
        from penstock.sinks import paimon_open, paimon_schema

        options = self.options or {}
        paimon_schema.check_options(self.primary_key, options)
        columns = paimon_schema.table_columns(schema, self.partition_by)
        table = paimon_open.find_table(self.warehouse, self.table)
        if table is None and not self.create:
            raise TableMismatch(
                f"there is no table {self.table} in {self.warehouse}",
                cause="its name is misspelt, or it was not made yet; create=False forbids to make it",
                next_step="make the table, or allow it with create=True",
                table=self.table,
            )
        paimon_open.make_writable(self.warehouse, self.table)
        if table is None:
            table = paimon_open.create_table(self.warehouse, self.table, columns, self.partition_by, options)
        paimon_schema.check_shape(table)
        paimon_schema.check_columns(schema, table, self.partition_by)

    def open_writer(self, context: WriterContext, schema: pa.Schema) -> PaimonWriter:
        from penstock.sinks.paimon_writer import PaimonWriter

        return PaimonWriter(self.warehouse, self.table, context, schema)

    def open_committer(self, commit_user: str) -> PaimonCommitter:
        from penstock.sinks.paimon_commit import PaimonCommitter

        return PaimonCommitter(self.warehouse, self.table, commit_user)

    def open_keeper(self, commit_user: str, pending: Callable[[], Iterable[Committable]]) -> Keeper | None:
        """Looks after the table while the query runs; None when `upkeep` is off, or the table is not in a folder."""
        if self.upkeep is False or as_local(self.warehouse) is None:
            return None
        from penstock.sinks.paimon_upkeep.keeper import PaimonKeeper

        policy = Upkeep() if self.upkeep is True else self.upkeep
        return PaimonKeeper(self.warehouse, self.table, policy, own_user=commit_user, pending=pending)


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
