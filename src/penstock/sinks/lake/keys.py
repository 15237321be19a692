"""Tables with a primary key: which rows meet in one writer, and what a writer makes of the rows of an epoch.

A writer keeps the newest row of each key. What it hands over are rows to put into the table, and keys whose rows go
away. Both are sorted by key, so that readers and merges skip files and row groups by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigError, SubtaskFailed, TableMismatch, TableRefused
from penstock.hashing import hash_columns, why_no_key
from penstock.sinks.rowkind import row_kinds, takes_back
from penstock.sinks.runs import last_rows, run_starts
from penstock.sinks.upkeep import Upkeep

BUFFER_BYTES_MAX = 128 << 20
"""Rows of an epoch that a writer keeps to find the newest of each key. Beyond it, a file gets what there is."""


@dataclass(frozen=True)
class KeyRouting:
    """Rows of one key meet in one writer, in their order."""

    primary_key: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return (f"key({', '.join(self.primary_key)})",)

    @property
    def ordered(self) -> bool:
        return True

    def lanes(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        return hash_columns([batch.column(name) for name in self.primary_key]) & np.int64(0x7FFF_FFFF)


def as_names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def check_sizes(upkeep: object, target_file_size: int, merge_bytes_max: int) -> None:
    """Raises: `ConfigError`."""
    if not isinstance(upkeep, bool | Upkeep):
        raise ConfigError(
            f"upkeep={upkeep!r}", cause="upkeep takes True, False or a pen.Upkeep(...)", next_step="change it"
        )
    for option, size in (("target_file_size", target_file_size), ("merge_bytes_max", merge_bytes_max)):
        if size < 1:
            raise ConfigError(f"{option}={size}", cause="it is a number of bytes, at least one", next_step="change it")


def check_arguments(description: str, primary_key: Sequence[str], row_kind: str | None) -> None:
    """Raises: `ConfigError`."""
    if len(set(primary_key)) < len(primary_key):
        raise ConfigError(
            f"primary_key={list(primary_key)} of {description} names a column twice",
            cause="a key has each column once",
            next_step="leave the second one out",
        )
    if row_kind is not None and not primary_key:
        raise ConfigError(
            f"row_kind={row_kind!r} of {description} without primary_key",
            cause="rows are changed and deleted by their key; a table without one is only added to",
            next_step="name the key columns: primary_key=[...]",
        )
    if row_kind is not None and row_kind in primary_key:
        raise ConfigError(
            f"row_kind={row_kind!r} of {description} is part of its primary_key",
            cause="the row kind is not stored",
            next_step="leave it out of the key",
        )


def require_columns(description: str, option: str, names: Sequence[str], schema: pa.Schema) -> None:
    """Raises: `TableMismatch`."""
    for name in names:
        if name not in schema.names:
            raise TableMismatch(
                f"{option} of {description} names {name!r}; the stream has {schema.names}",
                cause="the column is misspelt, or an operator dropped it",
                next_step=f"name columns of the stream in {option}",
                column=name,
            )


def check_keys(
    description: str, primary_key: Sequence[str], row_kind: str | None, partitioned_by: Sequence[str], schema: pa.Schema
) -> None:
    """Whether the stream has what a table with this key needs.

    `partitioned_by` are the columns that partitions are made of. Raises: `TableMismatch`, `TableRefused`.
    """
    if not primary_key:
        return
    require_columns(description, "primary_key", primary_key, schema)
    require_columns(description, "row_kind", () if row_kind is None else (row_kind,), schema)
    for name in primary_key:
        kind = schema.field(name).type
        why = why_no_key(schema.field(name))
        if pa.types.is_floating(kind):
            why = "floating-point numbers that look equal may differ; use a decimal, an integer or a string"
        if why is not None:
            raise TableRefused(
                f"{description}: column {name!r} of the primary key is a {kind}",
                cause="values of this type cannot be told apart for certain",
                next_step=why,
            )
    outside = [name for name in partitioned_by if name not in primary_key]
    if outside:
        raise TableRefused(
            f"{description} is partitioned by {outside[0]!r}, which is not part of the primary key {list(primary_key)}",
            cause="the row of a key could move to another partition: every commit would have to look into all of them",
            next_step=f"add {outside[0]!r} to the primary key, or partition by columns of the key",
            column=outside[0],
        )


def without_kind(schema: pa.Schema, row_kind: str | None) -> pa.Schema:
    """What the table stores of a stream."""
    return schema if row_kind is None else pa.schema([field for field in schema if field.name != row_kind])


@dataclass(slots=True)
class KeyedRows:
    """Rows of one epoch until they are written: `take` hands out what is to be put and what is to go, by key.

    `columns` are what the table stores, the key included.
    """

    primary_key: tuple[str, ...]
    columns: pa.Schema
    batches: list[pa.RecordBatch] = field(default_factory=list)
    gone: list[npt.NDArray[np.bool_]] = field(default_factory=list)
    buffered: int = 0

    @property
    def full(self) -> bool:
        return self.buffered > BUFFER_BYTES_MAX

    def add(self, rows: pa.RecordBatch, kinds: pa.Array | None) -> None:
        """Takes rows with the columns that are stored, and their row kinds.

        Raises: `SubtaskFailed` for a null in the key, or a word that is no row kind.
        """
        nulls = [name for name in self.primary_key if rows.column(name).null_count]
        if nulls:
            raise SubtaskFailed(
                f"a row has no value in {nulls[0]}, which is part of the primary key",
                cause="the source or an operator made a null",
                next_step="drop such rows with a filter, or give them a value, before they reach the sink",
                column=nulls[0],
            )
        nothing = np.zeros(rows.num_rows, dtype=bool)
        self.gone.append(nothing if kinds is None else takes_back(row_kinds(kinds)))
        self.batches.append(rows)
        self.buffered += rows.nbytes

    def take(self) -> tuple[pa.Table, pa.Table]:
        """The newest row of each key, sorted by key: rows to put, and keys whose rows go away."""
        table = pa.Table.from_batches(self.batches, schema=self.columns)
        gone = np.concatenate([np.zeros(0, dtype=bool), *self.gone])
        self.batches, self.gone, self.buffered = [], [], 0
        if not table.num_rows:
            return table, table.select(self.primary_key)
        order = _order(table, self.primary_key)
        keys = table.select(self.primary_key).take(order)
        newest = np.asarray(order)[last_rows(run_starts(keys.columns), table.num_rows)]
        leaving = gone[newest]
        return (
            table.take(pa.array(newest[~leaving])),
            table.select(self.primary_key).take(pa.array(newest[leaving])),
        )


def _order(table: pa.Table, keys: Sequence[str]) -> pa.Array:
    """Rows by key; those of one key stay in their order."""
    place = pa.array(np.arange(table.num_rows))
    numbered = pa.table([*(table.column(name) for name in keys), place], names=[*map(str, range(len(keys))), "place"])
    return pc.sort_indices(numbered, sort_keys=[(name, "ascending") for name in numbered.column_names])
