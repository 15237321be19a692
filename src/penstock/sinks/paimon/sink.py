"""Apache Paimon tables as a sink: append tables and tables with a primary key, partitioned or not, exactly once.

pypaimon takes a second to import, so it is imported when a table is first touched, not when a pipeline is described.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import ConfigError, TableMismatch
from penstock.protocol.ids import CheckpointId
from penstock.sinks.base import Committable, Routing, TableMark, WriterContext
from penstock.sinks.listeners import CommitListener
from penstock.sinks.paimon.catalogs import Warehouse, catalog_of, check_catalog, publishes_snapshots
from penstock.sinks.paimon.installed import require_pypaimon
from penstock.sinks.paimon.local import as_local, readable
from penstock.sinks.partition_done import PartitionDone
from penstock.sinks.upkeep import Keeper, Upkeep
from penstock.text import did_you_mean

if TYPE_CHECKING:
    from penstock.sinks.paimon.commit import PaimonCommitter
    from penstock.sinks.paimon.kinds import Kind
    from penstock.sinks.paimon.writer import PaimonWriter

_TABLE_NAME = re.compile(r"[^.$`/\\\s]+\.[^.$`/\\\s]+")


@dataclass(frozen=True)
class Paimon:
    """A table in a Paimon warehouse, which is a local folder or a URL.

    On a local folder snapshots are published create-if-absent, so any number of Penstock drivers may commit to one
    table. An object store without a catalog has no such operation: let one process at a time commit there.

    The remaining arguments describe the table to be made. One that exists keeps its own; what is given must then be
    the same, except `options`, which are for new tables only. `row_kind` names a column of the stream that says what
    to do with a row in a table with a primary key: '+I', '-U', '+U', '-D', or Debezium's 'c', 'r', 'u', 'd'.

    `evolve_table` adds columns that the stream has and the table lacks; rows that are there have null in them.

    `catalog` holds the options of a catalog that pypaimon knows, by ``metastore``: filesystem, jdbc or rest. A REST
    catalog publishes snapshots itself, so any number of drivers may commit there; its tables get no upkeep.

    An option of the table that would be ignored is refused, unless `ignore_options` names it.

    `upkeep` merges manifests, compacts files and expires snapshots in the background; see `Upkeep`. Only tables in a
    local folder get it.

    >>> Paimon("/data/lake", "shop.clicks", partition_by=["day"]).description
    'Paimon table shop.clicks in /data/lake'
    """

    warehouse: str
    table: str
    _: KW_ONLY
    create: bool = True
    primary_key: Sequence[str] = ()
    partition_by: Sequence[str] = ()
    buckets: int | None = None
    bucket_key: Sequence[str] = ()
    merge_engine: str | None = None
    row_kind: str | None = None
    options: Mapping[str, str] | None = field(default=None, hash=False)
    ignore_options: Sequence[str] = ()
    name: str | None = None
    partition_done: PartitionDone | None = None
    upkeep: Upkeep | bool = True
    evolve_table: bool = False
    catalog: Mapping[str, str] | None = field(default=None, repr=False, hash=False)
    _sequence_shift: int = field(default=0, repr=False)
    _buckets_at_start: int | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        require_pypaimon(f"Paimon({self.warehouse!r}, {self.table!r})")
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
        address = self.warehouse
        if self.catalog is not None:
            check_catalog(self.catalog)
            address = Warehouse(address, {key: str(value) for key, value in self.catalog.items()})
        if not publishes_snapshots(address) and (folder := as_local(address)) is not None:
            address = folder if self.catalog is None else Warehouse(folder, catalog_of(address) | {"warehouse": folder})
        object.__setattr__(self, "warehouse", address)
        for names in ("partition_by", "primary_key", "bucket_key", "ignore_options"):
            object.__setattr__(self, names, _names(getattr(self, names)))
        options = {key: str(value) for key, value in (self.options or {}).items()}
        object.__setattr__(self, "options", options)
        _refuse_twice(
            options, {"bucket": self.buckets, "bucket-key": self.bucket_key, "merge-engine": self.merge_engine}
        )
        if self.partition_done is not None and not self.partition_by:
            raise ConfigError(
                f"partition_done without partition_by for table {self.table}",
                cause="only partitions can be marked as done",
                next_step="name the partition columns, also of a table that exists: partition_by=[...]",
            )

    @property
    def description(self) -> str:
        return f"Paimon table {self.table} in {self.warehouse}"

    def routing(self, schema: pa.Schema) -> Routing | None:
        """Rows of one bucket go to one writer.

        Raises: as `check`.
        """
        return self._existing_or_drafted(schema)[1].routing()

    def mark(self) -> TableMark | None:
        """The table's name and the time of its first schema, which stay together when it is renamed or moved.

        Raises: `StorageFailed`.
        """
        from penstock.sinks.paimon import open as paimon_open
        from penstock.sinks.paimon import private as paimon_private

        table = paimon_open.find_table(self.warehouse, self.table)
        return None if table is None else TableMark(name=self.table, made_at_ms=paimon_private.made_at_ms(table))

    def check(self, schema: pa.Schema) -> None:
        """Makes the table if it is missing, or verifies that it fits the stream.

        Raises: `TableMismatch`, `TableRefused`, `StorageFailed`.
        """
        from penstock.sinks.paimon import kinds as paimon_kinds
        from penstock.sinks.paimon import open as paimon_open
        from penstock.sinks.paimon import schema as paimon_schema

        table, kind = self._existing_or_drafted(schema)
        paimon_kinds.check_row_kind(kind, self.row_kind, schema)
        paimon_open.make_writable(self.warehouse, self.table)
        if table is None:
            table = paimon_open.create_table(self.warehouse, self.table, self._schema(schema))
            # Another process may have made another table meanwhile.
            kind = paimon_kinds.check_kind(table)
        elif self.evolve_table:
            wanted = paimon_schema.table_columns(self._stored(schema, kind.columns), self.partition_by)
            table = paimon_open.add_columns(self.warehouse, table, self.table, wanted)
        with readable(self.description):
            paimon_kinds.check_wanted(table, self.primary_key, self.bucket_key, self.buckets, self.merge_engine)
            paimon_schema.check_columns(self._stored(schema, kind.columns), table, self.partition_by)

    def taken_over(self, checkpoint: CheckpointId, pending: Sequence[Committable]) -> Paimon:
        """The same sink, whose rows are newer than all that the table holds or is about to get."""
        from penstock.sinks.paimon.kinds import Kind
        from penstock.sinks.paimon.open import open_table
        from penstock.sinks.paimon.sequence import known_sequences, shift_above

        table = open_table(self.warehouse, self.table)
        with readable(self.description):
            kind = Kind.of(table)
            shift = shift_above(checkpoint, known_sequences(table, pending)) if kind.bucketed else 0
        return dataclasses.replace(self, _sequence_shift=shift, _buckets_at_start=kind.buckets)

    def open_writer(self, context: WriterContext, schema: pa.Schema) -> PaimonWriter:
        require_pypaimon(f"The writer of {self.description}")  # an executor may have other packages than the driver
        from penstock.sinks.paimon.open import open_table
        from penstock.sinks.paimon.sequence import first_number
        from penstock.sinks.paimon.writer import PaimonWriter

        table = open_table(self.warehouse, self.table)
        first = first_number(context.checkpoint, self._sequence_shift)
        if self._buckets_at_start not in {None, table.total_buckets}:
            raise TableMismatch(
                f"table {self.table} has bucket = {table.total_buckets}; the query began with {self._buckets_at_start}",
                cause="the table was altered while the query runs; rows were dealt out by the old number",
                next_step="set the number back, or drain the query and start it with a new checkpoint folder",
                table=self.table,
            )
        return PaimonWriter(
            table,
            context.checkpoint,
            schema,
            row_kind=self.row_kind,
            first_sequence=first,
            announce=context.announce,
        )

    def open_committer(self, commit_user: str) -> PaimonCommitter:
        from penstock.sinks.paimon.commit import PaimonCommitter

        with readable(self.description):
            return PaimonCommitter(self.warehouse, self.table, commit_user)

    def _existing_or_drafted(self, schema: pa.Schema) -> tuple[Any, Kind]:
        """The table, or None, and the kind it has or would have."""
        from penstock.sinks.paimon import kinds as paimon_kinds
        from penstock.sinks.paimon import open as paimon_open
        from penstock.sinks.paimon.options import check_options

        self._require_columns(schema)
        table = paimon_open.find_table(self.warehouse, self.table)
        if table is None and not self.create:
            raise TableMismatch(
                f"there is no table {self.table} in {self.warehouse}",
                cause="its name is misspelt, or it was not made yet; create=False forbids to make it",
                next_step="make the table, or allow it with create=True",
                table=self.table,
            )
        drafted = paimon_open.draft_table(self.table, self._schema(schema)) if table is None else table
        with readable(self.description):
            kind = paimon_kinds.check_kind(drafted)
        check_options(kind.options, self.ignore_options)
        return table, kind

    def _require_columns(self, schema: pa.Schema) -> None:
        named = {"primary_key": self.primary_key, "partition_by": self.partition_by, "bucket_key": self.bucket_key}
        for argument, names in named.items():
            for name in (name for name in names if name not in schema.names):
                raise TableMismatch(
                    f"{argument} of table {self.table} names {name!r}, and the stream has no such column"
                    f"{did_you_mean(name, schema.names)}",
                    cause="a typo, or the column was dropped before write()",
                    next_step=f"name a column of the stream: {', '.join(schema.names)}",
                    table=self.table,
                    column=name,
                )

    def _schema(self, schema: pa.Schema) -> Any:
        """The table to be made, as pypaimon describes it."""
        from penstock.sinks.paimon import kinds as paimon_kinds
        from penstock.sinks.paimon import open as paimon_open
        from penstock.sinks.paimon import schema as paimon_schema

        stored = self._stored(schema, None)
        columns = paimon_schema.table_columns(stored, self.partition_by, (*self.primary_key, *self.bucket_key))
        options = paimon_kinds.table_options(
            self.primary_key, self.bucket_key, self.buckets, self.merge_engine, self.options or {}
        )
        return paimon_open.table_schema(self.table, columns, self.partition_by, self.primary_key, options)

    def _stored(self, schema: pa.Schema, columns: pa.Schema | None) -> pa.Schema:
        from penstock.sinks.paimon.writer import stored_columns

        return stored_columns(schema, self.row_kind, columns)

    def listeners(self) -> tuple[CommitListener, ...]:
        if self.partition_done is None:
            return ()
        from penstock.sinks.paimon.done import PartitionMarker

        return (PartitionMarker(self.warehouse, self.table, self.partition_done),)

    def open_keeper(self, commit_user: str, pending: Callable[[], Iterable[Committable]]) -> Keeper | None:
        """Looks after the table while the query runs; None when `upkeep` is off, or the table is not in a folder."""
        if self.upkeep is False or publishes_snapshots(self.warehouse) or as_local(self.warehouse) is None:
            return None
        from penstock.sinks.paimon.upkeep.keeper import PaimonKeeper

        policy = Upkeep() if self.upkeep is True else self.upkeep
        return PaimonKeeper(self.warehouse, self.table, policy, own_user=commit_user, pending=pending)


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _refuse_twice(options: Mapping[str, str], arguments: Mapping[str, object]) -> None:
    for option, value in arguments.items():
        if option in options and value not in {None, ()}:
            raise ConfigError(
                f"options has {option!r}, and so has an argument of its own",
                cause="one of them would be ignored",
                next_step=f"leave {option!r} out of options",
                option=option,
            )
