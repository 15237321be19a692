"""Delta Lake tables as a sink: append, partitioned or not, exactly once.

A commit is one entry of the table's log. It carries an application transaction of our commit user with the checkpoint
as its version, so the table itself says what was committed, after log cleanup too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import ConfigError
from penstock.sinks.base import Committable, Routing, SinkDefaults, TableMark, WriterContext
from penstock.sinks.lake.keys import KeyRouting, as_names, check_arguments, check_sizes
from penstock.sinks.lake.merge import MERGE_BYTES_MAX
from penstock.sinks.listeners import CommitListener
from penstock.sinks.parquet.files import TARGET_BYTES
from penstock.sinks.partition_done import PartitionDone
from penstock.sinks.upkeep import Keeper, Upkeep

if TYPE_CHECKING:
    from penstock.sinks.delta.commit import DeltaCommitter
    from penstock.sinks.delta.writer import DeltaWriter


@dataclass(frozen=True)
class Delta(SinkDefaults):
    """A Delta Lake table at a path or a URL (``s3://``, ``gs://``, ``abfss://``).

    Credentials for an object store come from the environment, as those for checkpoints do. `create`, `partition_by` and
    `configuration` (such as ``delta.checkpointInterval``) are for a table that does not exist yet. `evolve_table` adds
    columns that the stream has and the table lacks. `partition_done` marks finished partitions with ``_SUCCESS``.
    `upkeep` compacts small files in the background; see `Upkeep`.

    With `primary_key` a row replaces the one with the same key; `row_kind` names a column that says which rows are
    deleted. The driver then rewrites the files that hold a changed key, up to `merge_bytes_max` in one commit.
    `sort_by` orders the rows of a file, by default by the key, so that readers skip parts of it.

    >>> Delta("/data/clicks", partition_by=["day"]).description
    'Delta table /data/clicks'
    """

    uri: str
    _: KW_ONLY
    create: bool = True
    partition_by: Sequence[str] = ()
    configuration: Mapping[str, str] | None = field(default=None, hash=False)
    evolve_table: bool = False
    target_file_size: int = TARGET_BYTES
    primary_key: Sequence[str] = ()
    row_kind: str | None = None
    sort_by: Sequence[str] = ()
    merge_bytes_max: int = MERGE_BYTES_MAX
    name: str | None = None
    partition_done: PartitionDone | None = None
    upkeep: Upkeep | bool = True

    def __post_init__(self) -> None:
        require_deltalake(f"Delta({self.uri!r})")
        for option in ("partition_by", "primary_key", "sort_by"):
            object.__setattr__(self, option, as_names(getattr(self, option)))
        check_arguments(self.description, self.primary_key, self.row_kind)
        # Spark's workers run in another folder, so a relative path would mean another table there.
        if "://" not in self.uri:
            object.__setattr__(self, "uri", str(Path(self.uri).expanduser().absolute()))
        check_sizes(self.upkeep, self.target_file_size, self.merge_bytes_max)
        if self.partition_done is not None and not self.partition_by:
            raise ConfigError(
                f"partition_done without partition_by for {self.description}",
                cause="only partitions can be marked as done",
                next_step="name the partition columns, also of a table that exists: partition_by=[...]",
            )

    @property
    def description(self) -> str:
        return f"Delta table {self.uri}"

    def mark(self) -> TableMark | None:
        """The table's address and the time of its making. Raises: `StorageFailed`."""
        from penstock.sinks.delta.table import find_table

        table = find_table(self.uri)
        return None if table is None else TableMark(name=self.uri, made_at_ms=table.metadata().created_time)

    def routing(self, schema: pa.Schema) -> Routing | None:
        """Rows of one key go to one writer."""
        del schema
        return KeyRouting(tuple(self.primary_key)) if self.primary_key else None

    def check(self, schema: pa.Schema) -> None:
        """Makes the table if it is missing, or verifies that it fits the stream.

        Raises: `TableMismatch`, `TableRefused`, `StorageFailed`.
        """
        from penstock.sinks.delta.check import check_table

        check_table(self, schema)

    def open_writer(self, context: WriterContext, schema: pa.Schema) -> DeltaWriter:
        require_deltalake(f"The writer of {self.description}")  # an executor may have other packages than the driver
        from penstock.sinks.delta.writer import DeltaWriter

        return DeltaWriter(self, schema, context)

    def open_committer(self, commit_user: str) -> DeltaCommitter:
        from penstock.sinks.delta.commit import DeltaCommitter

        return DeltaCommitter(self, commit_user)

    def listeners(self) -> tuple[CommitListener, ...]:
        if self.partition_done is None:
            return ()
        from penstock.sinks.parquet.done import FolderMarker

        return (FolderMarker(self.uri, self.partition_done),)

    def open_keeper(self, commit_user: str, pending: Callable[[], Iterable[Committable]]) -> Keeper | None:
        """Looks after the table while the query runs; None when `upkeep` is off."""
        del commit_user, pending
        if self.upkeep is False:
            return None
        from penstock.sinks.delta.keeper import DeltaKeeper

        return DeltaKeeper(self.uri, Upkeep() if self.upkeep is True else self.upkeep, self.target_file_size)


def require_deltalake(what: str) -> None:
    """Raises: `ConfigError`."""
    if find_spec("deltalake") is None:
        raise ConfigError(
            f"{what} needs the package deltalake, which is not installed",
            cause="Delta Lake tables are an extra of Penstock",
            next_step="pip install 'penstock[delta]', on the driver and on the executors",
        )
