"""A sink of one's own, written by CONTRIBUTING.md alone: data files, and a commit log of names that nobody has."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.engine.cluster import JobFailed
from penstock.protocol.ids import CheckpointId, Generation
from penstock.sinks.base import CommitPermit, CommitReceipt, Committable, SinkDefaults, TableHistory, WriterContext
from penstock.testing.inline import InlineCluster, InlineRun, stream_of
from tests.support.engine_jobs import SCHEMA, FakeClock, batches_of, run_until


@dataclass(frozen=True, slots=True)
class Lines(SinkDefaults):
    """Rows as lines of JSON in files; ``log/<n>.json`` says which files the n-th commit added."""

    folder: str

    @property
    def description(self) -> str:
        return f"lines in {self.folder}"

    def check(self, schema: pa.Schema) -> None:
        del schema
        (Path(self.folder) / "log").mkdir(parents=True, exist_ok=True)

    def open_writer(self, context: WriterContext, schema: pa.Schema) -> LinesWriter:
        del schema
        return LinesWriter(Path(self.folder), context)

    def open_committer(self, commit_user: str) -> LinesCommitter:
        return LinesCommitter(Path(self.folder), commit_user)


class LinesWriter:
    def __init__(self, folder: Path, context: WriterContext) -> None:
        name = f"{context.checkpoint}-{context.generation}-{context.subtask}-{context.attempt}.jsonl"
        self._path, self._announce = folder / name, context.announce
        self._rows: list[str] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += [json.dumps(row) for row in batch.to_pylist()]

    def prepare(self) -> list[Committable]:
        if not self._rows:
            return []
        self._announce(self._path.name)
        text = "\n".join(self._rows)
        self._path.write_text(text)
        return [Committable(self._path.name.encode(), len(self._rows), len(text))]

    def abort(self) -> None:
        self._path.unlink(missing_ok=True)


class LinesCommitter:
    def __init__(self, folder: Path, user: str) -> None:
        self._folder, self._user = folder, user

    def fence(self, generation: Generation) -> None:
        """A test has one driver at a time."""

    def _mine(self) -> list[CommitReceipt]:
        entries = [(int(path.stem), json.loads(path.read_text())) for path in sorted((self._folder / "log").iterdir())]
        return [
            CommitReceipt(CheckpointId(entry["checkpoint"]), number, entry["rows"], len(entry["files"]))
            for number, entry in entries
            if entry["user"] == self._user
        ]

    def commits(self, oldest_snapshot: int | None, limit: int, floor: int = 0) -> TableHistory:
        newest = [receipt for receipt in self._mine() if int(receipt.snapshot or 0) >= (oldest_snapshot or 0)]
        return TableHistory(tuple(newest[-limit:]))

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
        held = [receipt for receipt in self._mine() if receipt.checkpoint >= permit.checkpoint]
        if held:
            return held[-1]
        number = 1 + len(list((self._folder / "log").iterdir()))
        files = [committable.payload.decode() for committable in committables]
        rows = sum(committable.rows for committable in committables)
        assert still_leader()
        with (self._folder / "log" / f"{number:06d}.json").open("x") as log:
            json.dump({"user": self._user, "checkpoint": permit.checkpoint, "rows": rows, "files": files}, log)
        return CommitReceipt(permit.checkpoint, number, rows, len(files))

    def missing_files(self, committables: Sequence[Committable]) -> tuple[str, ...]:
        names = (committable.payload.decode() for committable in committables)
        return tuple(name for name in names if not (self._folder / name).exists())

    def partitions(self, committables: Sequence[Committable]) -> tuple[str, ...]:
        return ()

    def remove(self, files: Sequence[str]) -> None:
        for name in files:
            (self._folder / name).unlink(missing_ok=True)

    def abort(self, committables: Sequence[Committable]) -> None:
        self.remove([committable.payload.decode() for committable in committables])

    def close(self) -> None:
        """Nothing is open."""


def rows_in(folder: Path) -> list[dict[str, int]]:
    files = [name for path in sorted((folder / "log").iterdir()) for name in json.loads(path.read_text())["files"]]
    return [json.loads(line) for name in files for line in (folder / name).read_text().splitlines()]


def failing_once(cluster: InlineCluster) -> None:
    def before_job(job: object) -> None:
        cluster.before_job = lambda _: None
        raise JobFailed("a worker was lost")

    cluster.before_job = before_job


@pytest.mark.parametrize("prepare", [lambda _: None, failing_once], ids=["quiet", "a job fails"])
def test_every_row_is_in_its_log_once_after_a_stop_and_a_restart(
    tmp_path: Path, prepare: Callable[[InlineCluster], None]
) -> None:
    lines = tmp_path / "lines"
    run = InlineRun(batches_of(50, 4), FakeClock(), prepare=prepare)
    output = stream_of(SCHEMA).write(Lines(str(lines)))
    run_until(run, output, lambda event: event.batch_id == 1, checkpoint=tmp_path / "checkpoint")
    run.start(output, checkpoint=tmp_path / "checkpoint").await_termination(60)
    assert sorted(row["number"] for row in rows_in(lines)) == list(range(200))
