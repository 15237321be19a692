"""Lakes on an object store, over HTTP: rows arrive once, keys are merged, files of losers go, upkeep works."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.bucket import BucketServer
from penstock.protocol.ids import CheckpointId, Generation
from penstock.sinks import WriterContext
from penstock.sinks.delta.sink import Delta
from penstock.sinks.iceberg.sink import Iceberg
from penstock.sinks.upkeep import Upkeep
from penstock.store import object as objects
from tests.sinks.test_lake_keys import KINDS, commit, read, written

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("op", pa.string())])


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    server = BucketServer(tmp_path / "served")
    monkeypatch.setattr(objects, "_stores", {})
    monkeypatch.setattr(objects, "_clients", {})
    for name, value in {**server.environment, "PENSTOCK_CACHE": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    yield server
    server.close()


def sink_in(kind: str, bucket: BucketServer, folder: Path, **options: Any) -> Any:
    if kind == "delta":
        return Delta("s3://bucket/lake/t", **options)
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": "s3://bucket/lake",
        "s3.endpoint": bucket.endpoint,
        "s3.access-key-id": "any",
        "s3.secret-access-key": "any",
        "s3.region": "us-east-1",
    }
    return Iceberg(catalog, "shop.t", **options)


def batch(rows: list[tuple[int, int, str]]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(column) for column in zip(*rows, strict=True)], schema=SCHEMA)


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_in_a_bucket_is_written_by_key_and_kept_in_shape(
    kind: str, bucket: BucketServer, tmp_path: Path
) -> None:
    sink = sink_in(kind, bucket, tmp_path, primary_key=["id"], row_kind="op")
    sink.check(SCHEMA)
    committer = sink.open_committer("user")
    committer.fence(Generation(1))
    committer.commits(None, 1)
    for number in range(1, 5):
        rows = [(number, number, "+I"), (0, number, "+U"), (number - 1, 0, "-D" if number == 3 else "+U")]
        commit(committer, number, written(sink, number, batch(rows)))
    assert sorted((row["id"], row["n"]) for row in read(sink).to_pylist()) == [(0, 4), (1, 0), (3, 0), (4, 4)]
    announced: list[str] = []
    context = WriterContext(CheckpointId(5), Generation(1), 0, 1, attempt="lost", announce=announced.append)
    lost = sink.open_writer(context, SCHEMA)
    lost.write(batch([(9, 9, "+I")]))
    left = lost.prepare()
    committer.remove(announced)
    assert committer.missing_files(left)
    keeper = sink.open_keeper("user", tuple)
    assert keeper is not None
    assert not keeper.step().failures
    again = sink.open_committer("user")
    assert again.commits(None, 1).commits[-1].checkpoint == 4


@pytest.mark.parametrize("kind", KINDS)
def test_an_older_driver_commits_nothing_to_a_bucket(kind: str, bucket: BucketServer, tmp_path: Path) -> None:
    sink = sink_in(kind, bucket, tmp_path, upkeep=Upkeep(small_files=2))
    schema = pa.schema([("id", pa.int64())])
    sink.check(schema)
    old, files = sink.open_committer("user"), written(sink, 1, pa.record_batch([pa.array([1, 2])], schema=schema))
    new = sink.open_committer("user")

    def replaced() -> None:
        new.fence(Generation(2))
        new.commits(None, 1)
        commit(new, 1, files)

    real = old._publish

    def publish(*arguments: Any) -> None:
        if not new.commits(None, 1).commits:
            replaced()
        real(*arguments)

    old._publish = publish
    assert commit(old, 1, files).checkpoint == 1
    assert Counter(read(sink)["id"].to_pylist()) == Counter([1, 2])
