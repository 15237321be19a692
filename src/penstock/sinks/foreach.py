"""A function of yours as a sink: it gets the rows of each checkpoint, in order, at least once.

Tasks put the rows into a folder. Once a checkpoint is published, the driver reads its rows and calls the function. Then
it notes in the folder that the checkpoint is done. A driver that dies between these two steps leaves no note, so the
next one calls the function again with the same checkpoint and the same rows.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import CommitFailed, ConfigError, CorruptFile
from penstock.protocol.ids import CheckpointId, Generation
from penstock.sinks.base import (
    CommitPermit,
    CommitReceipt,
    Committable,
    NamedFiles,
    SinkDefaults,
    TableHistory,
    WriterContext,
    files_missing,
    no_longer_leader,
)
from penstock.sinks.lake.commit import write_failed
from penstock.sinks.parquet.files import ParquetFiles
from penstock.sinks.parquet.remote import open_folder
from penstock.store import open_store
from penstock.store.base import AlreadyExists
from penstock.store.paths import is_path

EpochFunction = Callable[[int, pa.Table], object]


class WaitingRows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files with rows of one checkpoint, from one writer."""

    checkpoint: CheckpointId
    files: list[str]


class DoneNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The note that a checkpoint is done."""

    checkpoint: CheckpointId
    rows: int
    files: int
    watermark: int | None


@dataclass(frozen=True)
class ForeachEpoch(SinkDefaults):
    """Calls ``fn(checkpoint, rows)`` in the driver, once or more for each checkpoint with rows, in their order.

    `rows` is an Arrow table. When the function raises, it is called again, five times in a row; then the query stops,
    and a restart goes on with the same checkpoint. A restart may repeat the last call, so the function has to give the
    same result when it is called twice. `folder` is a path or URL that tasks and driver reach, for this sink alone:
    rows wait there for the function.

    >>> ForeachEpoch(lambda checkpoint, rows: print(rows.num_rows), "/data/waiting").description
    'function <lambda> for each checkpoint'
    """

    fn: EpochFunction | None = field(repr=False, hash=False, compare=False)
    folder: str
    name: str | None = None

    def __post_init__(self) -> None:
        if self.fn is not None and not callable(self.fn):
            raise ConfigError(
                f"ForeachEpoch({self.fn!r}, ...)",
                cause="its first argument is a function of a checkpoint's id and an Arrow table",
                next_step="pass a function: ForeachEpoch(lambda checkpoint, rows: ..., folder)",
            )
        # Spark's workers run in another folder, so a relative path would mean another one there.
        if "://" not in self.folder:
            object.__setattr__(self, "folder", str(Path(self.folder).expanduser().absolute()))

    @property
    def description(self) -> str:
        return f"function {getattr(self.fn, '__name__', 'of yours')} for each checkpoint"

    def check(self, schema: pa.Schema) -> None:
        """Any rows that Parquet can hold."""
        del schema
        open_store(self.folder)

    def taken_over(self, checkpoint: CheckpointId, pending: Sequence[Committable]) -> ForeachEpoch:
        """For the writers: the function stays in the driver."""
        del checkpoint, pending
        return dataclasses.replace(self, fn=None)

    def __reduce__(self) -> tuple[type[ForeachEpoch], tuple[None, str, str | None]]:
        """What is sent to workers: a function may hold a connection, which cannot be sent."""
        return ForeachEpoch, (None, self.folder, self.name)

    def __deepcopy__(self, memo: object) -> ForeachEpoch:
        """Within one process the function goes along."""
        return self

    def open_writer(self, context: WriterContext, schema: pa.Schema) -> WaitingRowsWriter:
        return WaitingRowsWriter(self.folder, context, schema)

    def open_committer(self, commit_user: str) -> FunctionCaller:
        assert self.fn is not None, "the function stays in the driver"
        return FunctionCaller(self.fn, self.folder, commit_user)


class WaitingRowsWriter:
    """Puts the rows of one subtask and one epoch into the folder."""

    def __init__(self, folder: str, context: WriterContext, schema: pa.Schema) -> None:
        self._folder, self._checkpoint = folder, context.checkpoint
        self._files = ParquetFiles(
            open_folder(folder),
            schema,
            (),
            lambda _: "rows",
            announce=context.announce,
            prefix=f"{context.checkpoint:010d}-{context.subtask:05d}",
        )

    def write(self, batch: pa.RecordBatch) -> None:
        try:
            self._files.add(batch)
        except Exception as error:
            raise write_failed("rows that wait for a function", self._folder, error) from error

    def prepare(self) -> list[Committable]:
        try:
            files = self._files.finish()
        except Exception as error:
            self.abort()
            raise write_failed("rows that wait for a function", self._folder, error) from error
        if not files:
            return []
        payload = WaitingRows(self._checkpoint, [file.name for file in files])
        rows, size = sum(file.stats.rows for file in files), sum(file.bytes for file in files)
        return [Committable(msgspec.json.encode(payload), rows, size)]

    def abort(self) -> None:
        self._files.abort()


class FunctionCaller(NamedFiles):
    """Calls the function, and notes what is done; used by one thread."""

    def __init__(self, fn: EpochFunction, folder: str, commit_user: str) -> None:
        self._fn, self._where = fn, folder
        self._folder, self._store = open_folder(folder), open_store(folder)
        self._notes = f"done/{hashlib.sha256(commit_user.encode()).hexdigest()[:16]}"

    def fence(self, generation: Generation) -> None:
        """Nothing keeps an older driver from calling the function; it asks whether it leads right before it does."""

    def commits(self, oldest_snapshot: int | None, limit: int, floor: int = 0) -> TableHistory:
        del oldest_snapshot, limit, floor
        done = self._done()
        return TableHistory(() if done is None else (_receipt(done),))

    def _done(self) -> DoneNote | None:
        """The newest note."""
        notes = [entry.path for entry in self._store.list(self._notes)]
        return msgspec.json.decode(self._store.read(max(notes)), type=DoneNote) if notes else None

    def commit(
        self,
        permit: CommitPermit,
        committables: Sequence[Committable],
        *,
        watermark: int | None,
        properties: Mapping[str, str],
        still_leader: Callable[[], bool],
    ) -> CommitReceipt:
        """Calls the function for each checkpoint that is not done, in order.

        Raises: `Fenced`; `MissingFile`; `CommitFailed` when the function raised: what it did is unknown.
        """
        del permit, properties
        done = self._done()
        for checkpoint, files in self._by_checkpoint(committables).items():
            if done is not None and checkpoint <= done.checkpoint:
                continue
            if missing := [file for file in files if not self._exists(file)]:
                raise files_missing(f"{self._where}/", checkpoint, missing)
            rows = pa.concat_tables([self._read(file) for file in files])
            if not still_leader():
                raise no_longer_leader(checkpoint, "was not handed to the function")
            self._call(checkpoint, rows)
            done = DoneNote(checkpoint, rows.num_rows, len(files), watermark)
            self._note(done)
            for file in files:
                self._folder.remove(file)
        assert done is not None, "a commit has something to commit"
        return _receipt(done)

    def _call(self, checkpoint: CheckpointId, rows: pa.Table) -> None:
        try:
            self._fn(checkpoint, rows)
        except Exception as error:
            raise CommitFailed(
                f"your function raised for checkpoint {checkpoint} with {rows.num_rows} rows:"
                f" {type(error).__name__}: {error}",
                cause="the function, or what it calls, failed",
                next_step="it is called again with the same rows, five times in a row; then fix it and start again",
                checkpoint=checkpoint,
            ) from error

    def _note(self, done: DoneNote) -> None:
        """Older notes say nothing that the newest does not."""
        path = f"{self._notes}/{done.checkpoint:010d}.json"
        try:
            self._store.create(path, msgspec.json.encode(done))
        except AlreadyExists:
            return  # a driver that was replaced was about to finish, and did
        self._store.delete([entry.path for entry in self._store.list(self._notes) if entry.path < path])

    def _read(self, file: str) -> pa.Table:
        with self._folder.open(file) as source:
            return pq.read_table(source)

    def _by_checkpoint(self, committables: Sequence[Committable]) -> dict[CheckpointId, list[str]]:
        found: dict[CheckpointId, list[str]] = {}
        for committable in committables:
            waiting = _decoded(committable)
            found.setdefault(waiting.checkpoint, []).extend(waiting.files)
        return dict(sorted(found.items()))

    def _names(self, committable: Committable) -> Sequence[str]:
        return _decoded(committable).files

    def _exists(self, file: str) -> bool:
        return self._folder.exists(file)

    def remove(self, files: Sequence[str]) -> None:
        for file in files:
            if file.startswith("rows/") and is_path(file):
                self._folder.remove(file)


def _receipt(done: DoneNote) -> CommitReceipt:
    return CommitReceipt(CheckpointId(done.checkpoint), None, done.rows, done.files, done.watermark)


def _decoded(committable: Committable) -> WaitingRows:
    try:
        found = msgspec.json.decode(committable.payload, type=WaitingRows)
    except msgspec.DecodeError as error:
        raise _damaged(str(error)) from error
    if unsafe := [file for file in found.files if not is_path(file)]:
        raise _damaged(f"it names {unsafe[0]!r}")
    return found


def _damaged(why: str) -> CorruptFile:
    return CorruptFile(
        f"a committable of a function sink cannot be used: {why}",
        cause="the checkpoint is damaged",
        next_step="restore an older checkpoint",
    )
