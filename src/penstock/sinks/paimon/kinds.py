"""Which kinds of Paimon tables can be written exactly once, and why others cannot.

Invariant: a table that passes can be written by any number of subtasks that do not know each other, with commits that
lag behind, provided that rows of one bucket meet in one subtask. Nothing a writer needs depends on what was committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import PenstockError, TableMismatch, TableRefused
from penstock.sinks.paimon import private
from penstock.sinks.paimon.bucket import BucketRouting, PartitionRouting, why_no_bucket_key

DEFAULT_BUCKETS = 4
"""Buckets of a new table with a primary key. Paimon's own default, dynamic buckets, is refused."""

ROW_KIND_FIELD = "rowkind.field"

_DYNAMIC, _POSTPONED = -1, -2


@dataclass(frozen=True)
class Kind:
    """What of a table decides how its rows are written."""

    columns: pa.Schema
    primary_key: tuple[str, ...]
    partition_by: tuple[str, ...]
    bucket_key: tuple[str, ...]
    buckets: int
    options: Mapping[str, str]

    @staticmethod
    def of(table: private.Table) -> Kind:
        return Kind(
            columns=private.columns_of(table),
            primary_key=tuple(table.primary_keys),
            partition_by=tuple(table.partition_keys),
            bucket_key=private.bucket_key(table),
            buckets=int(table.total_buckets),
            options={name: str(value) for name, value in table.table_schema.options.items()},
        )

    @property
    def merge_engine(self) -> str:
        return self.options.get("merge-engine", "deduplicate").lower()

    @property
    def bucketed(self) -> bool:
        return self.buckets > 0

    @property
    def ignores_deletes(self) -> bool:
        names = ("ignore-delete", *(f"{engine}.ignore-delete" for engine in ("first-row", "deduplicate")))
        return any(self.options.get(name, "false").lower() == "true" for name in names)

    def routing(self) -> BucketRouting | PartitionRouting | None:
        """Rows of one bucket must meet; those of one partition do if the table asks for fewer files."""
        if self.bucketed:
            columns = pa.schema([self.columns.field(name) for name in self.bucket_key])
            return BucketRouting(columns, self.partition_by, self.bucket_key, self.buckets)
        if self.partition_by and self.options.get("partition.sink-strategy", "none").lower() == "hash":
            return PartitionRouting(self.partition_by)
        return None


def table_options(
    primary_key: Sequence[str],
    bucket_key: Sequence[str],
    buckets: int | None,
    merge_engine: str | None,
    options: Mapping[str, str],
) -> dict[str, str]:
    """The options of a new table: those given by name go where Paimon looks for them."""
    made = dict(options)
    if primary_key:
        made.setdefault("bucket", str(DEFAULT_BUCKETS))
    named = {"bucket": buckets, "bucket-key": ",".join(bucket_key) or None, "merge-engine": merge_engine}
    return made | {option: str(value) for option, value in named.items() if value is not None}


def check_kind(table: private.Table) -> Kind:
    """Refuses a table, existing or only drafted, that subtasks cannot write exactly once.

    Raises: `TableRefused`.
    """
    if not private.is_file_store(table):
        raise _refused("a table that only points to other files", "it has no snapshots", "write to a Paimon table")
    try:
        kind = Kind.of(table)
    except ValueError as error:
        raise _refused(
            f"a table with a column that pypaimon has no Arrow type for: {error}",
            "its values could be neither written nor read back",
            "write to a table without that column (for MULTISET use a map from value to count)",
        ) from error
    _check_buckets(kind)
    _check_keys(kind)
    for option, (harmless, reason, instead) in (_OPTIONS | (_KEYED_OPTIONS if kind.primary_key else {})).items():
        value = kind.options.get(option, harmless).lower()
        if value != harmless:
            raise _refused(f"a table with {option} = {value}", reason, instead)
    why = private.why_not_merged(table)
    if why is not None:
        raise _refused(
            f"a table with merge-engine = {kind.merge_engine}: {why}",
            "pypaimon cannot merge such rows, neither when writing nor when reading",
            "leave these options out, or aggregate in the pipeline and write with merge-engine = deduplicate",
        )
    _check_sequence(table, kind)
    return kind


def _check_sequence(table: private.Table, kind: Kind) -> None:
    """Rows of a key that come in one epoch are stored as one row with one value of ``sequence.field``.

    A value that came with a smaller one is then as new as the whole row. A row of another epoch that belongs in between
    is put before all of them or behind, so what the table shows would depend on where epochs end.
    """
    fields = ", ".join(private.sequence_fields(table)) if kind.primary_key else ""
    if not fields:
        return
    reason = "a row that arrives late belongs between rows that were stored as one, so the order of columns is lost"
    if kind.merge_engine == "partial-update":
        raise _refused(
            f"a table with merge-engine = partial-update and sequence.field = {fields}",
            reason,
            "leave sequence.field out: rows of a key are kept in the order of their arrival; or merge columns in the"
            " pipeline, and write whole rows with merge-engine = deduplicate, which may have a sequence.field",
        )
    if kind.merge_engine == "aggregation":
        functions = private.aggregate_functions(table)
        ordered = [name for name, function in functions.items() if function not in _ANY_ORDER]
        if ordered:
            name = ordered[0]
            raise _refused(
                f"a table with sequence.field = {fields} and {functions[name]} for column {name}",
                reason,
                f"leave sequence.field out, or use a function for {name} whose result does not depend on the order of"
                " rows (max, sum, ...), or last_value",
            )


def _check_buckets(kind: Kind) -> None:
    if kind.buckets == _POSTPONED:
        raise _refused(
            "a table with bucket = -2 (postponed)",
            "its rows stay invisible until another engine compacts them into buckets",
            "use a fixed number of buckets: buckets=4",
        )
    if kind.primary_key and not set(kind.partition_by) <= set(kind.primary_key):
        raise _refused(
            f"a table with primary key {list(kind.primary_key)}, partitioned by {list(kind.partition_by)}",
            "a key could move from one partition to another, which needs an index over all partitions",
            "make the partition columns part of the primary key",
        )
    if kind.primary_key and kind.buckets == _DYNAMIC:
        raise _refused(
            "a table with primary key and dynamic buckets (bucket = -1)",
            "the bucket of a new key depends on an index of what was committed, and commits lag behind writers",
            "use a fixed number of buckets: buckets=4 (a table that exists cannot be changed: make another)",
        )
    if kind.buckets != _DYNAMIC and not kind.bucketed:
        raise _refused(f"a table with bucket = {kind.buckets}", "there is no such number", "use buckets=4")


def _check_keys(kind: Kind) -> None:
    if kind.primary_key and set(kind.primary_key) == set(kind.partition_by):
        raise _refused(
            f"a table whose primary key {list(kind.primary_key)} is its partition columns",
            "each partition would hold one row",
            "leave a column of the primary key out of partition_by",
        )
    if kind.bucketed and not kind.bucket_key:
        raise _refused(
            f"a table with bucket = {kind.buckets} and no bucket key",
            "nothing says which row goes into which bucket",
            'name columns: bucket_key=["user"], or leave the buckets out',
        )
    wrong = set(kind.bucket_key) - set(kind.primary_key) if kind.primary_key else set()
    wrong |= set(kind.bucket_key) & set(kind.partition_by)
    if kind.bucketed and wrong:
        raise _refused(
            f"a table with bucket key {list(kind.bucket_key)}",
            "a bucket key is part of the primary key, if there is one, and holds no partition column",
            f"leave {', '.join(sorted(wrong))} out of bucket_key",
        )
    for name in dict.fromkeys((*kind.primary_key, *(kind.bucket_key if kind.bucketed else ()))):
        why = why_no_bucket_key(kind.columns.field(name).type)
        if why is not None:
            raise _refused(
                f"a table with key column {name} of type {kind.columns.field(name).type}",
                "keys are hashed and ordered alike by every engine",
                why,
            )


def check_wanted(
    table: private.Table,
    primary_key: Sequence[str],
    bucket_key: Sequence[str],
    buckets: int | None,
    merge_engine: str | None,
) -> None:
    """Raises: `TableMismatch` when arguments were given that the table, made before, does not follow."""
    kind = Kind.of(table)
    rows = [
        ("primary_key", list(primary_key) or None, list(kind.primary_key)),
        ("bucket_key", list(bucket_key) or None, list(kind.bucket_key)),
        ("buckets", buckets, kind.buckets),
        ("merge_engine", merge_engine, kind.merge_engine if kind.primary_key else None),
    ]
    for argument, wanted, there in rows:
        if wanted is not None and wanted != there:
            raise TableMismatch(
                f"{argument}={wanted!r} was asked for, the table has {there!r}",
                cause="the table existed before",
                next_step=f"leave {argument} out to take the table as it is, or write to another table",
            )


def check_row_kind(kind: Kind, row_kind: str | None, schema: pa.Schema) -> None:
    """Refuses deletes where they would be lost, and a column that cannot tell them.

    Raises: `TableRefused`, `TableMismatch`.
    """
    stored = kind.options.get(ROW_KIND_FIELD)
    name = row_kind or stored
    if name is None:
        return
    if row_kind and stored not in {None, row_kind}:
        raise TableMismatch(
            f"row_kind={row_kind!r} was asked for, the table has {ROW_KIND_FIELD} = {stored}",
            next_step="leave row_kind out to take the table's",
        )
    if name not in schema.names or schema.field(name).type not in {pa.string(), pa.large_string()}:
        raise TableMismatch(
            f"the row kind column {name!r} is not a column of strings of the stream ({', '.join(schema.names)})",
            cause="a typo, or the column was dropped on the way",
            next_step="name a column with values such as '+I' and '-D', or 'c', 'u' and 'd'",
        )
    if not kind.primary_key:
        raise _refused(
            f"row kinds from column {name} in a table without primary key",
            "such a table can only be appended to",
            "give it a primary key: primary_key=[...]",
        )
    if kind.merge_engine != "deduplicate" and not kind.ignores_deletes:
        raise _refused(
            f"row kinds from column {name} in a table with merge-engine = {kind.merge_engine}",
            "pypaimon cannot take rows back with this merge engine",
            "drop deletes with a filter and leave row_kind out, or use merge_engine='deduplicate'",
        )


# Functions whose result for some rows is the same however the rows were grouped before, in an order that is not that of
# arrival. `last_value` is: the row with the largest sequence field is known as such after each fold.
_ANY_ORDER = frozenset(
    {"primary_key", "last_value", "sum", "product", "max", "min", "bool_or", "bool_and"}
    | {"theta_sketch", "hll_sketch", "rbm32"}
)
_NOT_YET = "this sink does not write such tables yet"
# Option: the value that does no harm, why any other is refused, and what to use instead.
_OPTIONS: dict[str, tuple[str, str, str]] = {
    "type": ("table", "it has no snapshots", "write to a Paimon table"),
    "file.format": ("parquet", "pypaimon changes or refuses values in other formats", "use file.format = parquet"),
    "file.format.per.level": ("", "pypaimon writes new files in one format", "use file.format = parquet"),
    "data-evolution.enabled": ("false", _NOT_YET, "leave the option out"),
    "target-file-row-num": ("", "pypaimon cannot cut files by rows", "use target-file-size"),
    "data-file.external-paths": ("", _NOT_YET, "keep data files inside the warehouse"),
    "data-file.path-directory": ("", _NOT_YET, "keep data files at their usual place"),
    "manifest.format": ("avro", "pypaimon writes Avro, which other engines would not find", "leave the option out"),
    "bucket-function.type": ("default", "pypaimon looks for rows by the default function", "leave the option out"),
}
_KEYED_OPTIONS: dict[str, tuple[str, str, str]] = {
    "changelog-producer": (
        "none",
        "pypaimon folds rows of a key before it writes an input changelog, and has no compaction that makes another",
        "leave the option out; a dedicated compaction job of Flink can make the changelog",
    ),
    "deletion-vectors.enabled": (
        "false",
        "rows of new files stay invisible until an engine that compacts has looked old ones up",
        "leave the option out: readers merge",
    ),
    "primary-key.nullable": ("false", _NOT_YET, "leave the option out; fill nulls before they reach the sink"),
    "data-file.thin-mode": ("false", "pypaimon writes key columns of their own", "leave the option out"),
    "sequence.snapshot-ordering": ("false", _NOT_YET, "leave the option out; order is kept without it"),
    "pk-clustering-override": ("false", _NOT_YET, "leave the option out"),
}


def _refused(seen: str, reason: str, instead: str) -> PenstockError:
    return TableRefused(seen, cause=reason, next_step=instead)
