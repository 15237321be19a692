"""Sources that are added, removed, brought back and reordered, on real Spark with a real table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock as pen
from penstock.engine import start as starting
from penstock.engine.naming import Placed
from penstock.errors import CheckpointMismatch, RestoreRefused
from penstock.spark import launch
from penstock.spark.quirks.sourcenames import NoNames, readers_of, with_names
from tests.support.spark_streams import finish, paimon, rows_in, stream, wait_until, write_files

FOLDERS = {"a": 0, "b": 1000, "c": 2000}
ROWS = 10


class Shop:
    """Files that arrive in three folders, and a table in which every number has to be once."""

    def __init__(self, spark: SparkSession, tmp_path: Path) -> None:
        self.spark, self.tmp_path, self.place = spark, tmp_path, tmp_path / "checkpoint"
        self.files = 0

    def arrive(self) -> None:
        """One more file in each folder."""
        for name, first in FOLDERS.items():
            numbers = range(first + self.files * ROWS, first + (self.files + 1) * ROWS)
            table = pa.table({"user": [n % 3 for n in numbers], "number": list(numbers)})
            write_files(self.tmp_path / name, [table], self.files)
        self.files += 1

    def reading(self, *names: str) -> pen.Output:
        streams = [pen.read(stream(self.spark, self.tmp_path / name, files_per_batch=9), name=name) for name in names]
        both = streams[0] if len(streams) == 1 else streams[0].union(*streams[1:], name="both")
        return both.write(paimon(self.tmp_path), name="out")

    def finish(self, *names: str, **options: Any) -> None:
        finish(self.reading(*names), checkpoint=self.place, **options)

    def numbers(self) -> Counter[int]:
        return Counter(row["number"] for row in rows_in(self.tmp_path))

    def expected(self, **files: int) -> Counter[int]:
        return Counter(FOLDERS[name] + n for name, count in files.items() for n in range(count * ROWS))


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    return Shop(spark, tmp_path)


def crash(*_: object) -> None:
    raise RuntimeError("the driver dies")


def test_sources_come_go_come_back_and_change_places(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """F1: "sources change places", "a source comes back". Each row once, also those of the time in which a source was
    not read, and after a crash at each step."""
    shop.arrive()
    shop.finish("a", "b")
    assert shop.numbers() == shop.expected(a=1, b=1)
    shop.arrive()
    plan = shop.reading("c", "b").start(shop.place, dry_run=True)
    assert {(line.name, line.word) for line in plan.lines if line.kind == "source"} == {
        ("a", "forgotten"),
        ("b", "carried"),
        ("c", "new"),
    }
    with monkeypatch.context() as patch:
        patch.setattr(starting, "rewrite_source", crash)
        with pytest.raises(RuntimeError, match="the driver dies"):
            shop.finish("c", "b")
    shop.finish("c", "b")
    assert shop.numbers() == shop.expected(a=1, b=2, c=2)
    shop.arrive()
    with monkeypatch.context() as patch:
        patch.setattr(launch.SparkFeed, "start", crash)
        with pytest.raises(RuntimeError, match="the driver dies"):
            shop.finish("b", "c", "a")
    shop.finish("b", "c", "a")
    assert shop.numbers() == shop.expected(a=3, b=3, c=3)
    assert shop.spark.conf.get("spark.sql.streaming.queryEvolution.enableSourceEvolution") == "false"


def test_a_log_by_places_is_converted_and_can_be_gone_back_to(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """F1, F6: a folder that Penstock wrote before it gave names to sources."""
    shop.arrive()
    with monkeypatch.context() as patch:
        patch.setattr(launch, "naming_of", lambda _: Placed("their readers have no names"))
        shop.finish("a", "b")
        shop.arrive()
        with pytest.raises(CheckpointMismatch, match="their readers have no names"):
            shop.finish("b", "a")
    shop.finish("a", "b")  # still by places
    before = pen.open(str(shop.place)).manifest
    assert before.source.batch_id == 1
    shop.arrive()
    shop.finish("c", "a", retain=50)
    assert shop.numbers() == shop.expected(a=3, b=2, c=3)
    shop.finish("b", "a", retain=50)
    assert shop.numbers() == shop.expected(a=3, b=3, c=3)
    plan = shop.reading("a", "b").start(shop.place, dry_run=True, restore=before.checkpoint)
    assert plan.fits, str(plan)


def test_readers_get_names_and_frames_stay_what_they_are(shop: Shop) -> None:
    shop.arrive()
    one, two = (stream(shop.spark, shop.tmp_path / name) for name in "ab")
    frame = one.where("number > 0").union(two.selectExpr("user + 1 as user", "number"))
    assert [len(found) for found in readers_of([frame])] == [2]
    with pytest.raises(NoNames, match="used twice"):
        readers_of([frame, one])
    named = with_names(frame, ["x", "y"])
    assert named.schema == frame.schema
    assert named.isStreaming


def test_a_plain_query_of_spark_is_taken_over_where_it_ended(shop: Shop) -> None:
    """F10: files and a generator; rows that the query had are not read again, later ones are, once."""
    spark, seen = shop.spark, Counter[int]()
    shop.arrive()
    place = str(shop.tmp_path / "plain")

    def plain(folder: str, frame: Any, column: str) -> None:
        def take(batch: Any, _: int) -> None:
            seen.update(row[column] for row in batch.collect())

        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", folder)
        assert writer.trigger(availableNow=True).start().awaitTermination(120)

    plain(place, stream(spark, shop.tmp_path / "a", files_per_batch=9), "number")
    assert seen == shop.expected(a=1)
    shop.arrive()
    read = pen.read(stream(spark, shop.tmp_path / "a", files_per_batch=9), name="a", from_checkpoint=place)
    other = pen.read(stream(spark, shop.tmp_path / "b"), name="a", from_checkpoint=place)
    with pytest.raises(RestoreRefused, match="the query reads another source"):
        finish(other.write(paimon(shop.tmp_path), name="out"), checkpoint=shop.place)
    output = read.write(paimon(shop.tmp_path), name="out")
    assert "read on from micro-batch 0" in str(output.start(shop.place, dry_run=True).lines)
    finish(output, checkpoint=shop.place)
    assert seen + shop.numbers() == shop.expected(a=2)
    shop.arrive()
    finish(output, checkpoint=shop.place)
    assert seen + shop.numbers() == shop.expected(a=3)


def test_the_offset_of_a_generator_is_taken_over(shop: Shop) -> None:
    """F10."""
    spark, place = shop.spark, str(shop.tmp_path / "plain")
    first = []

    def frame() -> Any:
        reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "10").option("numPartitions", "1")
        return reader.load().selectExpr("value % 3 as user", "value as number")

    writer = frame().writeStream.foreachBatch(lambda batch, _: first.extend(row.number for row in batch.collect()))
    query = writer.option("checkpointLocation", place).trigger(once=True).start()
    assert query.awaitTermination(120)
    output = pen.read(frame(), name="rate", from_checkpoint=place).write(paimon(shop.tmp_path), name="out")
    query = output.start(shop.place, epoch="200 ms")
    wait_until(lambda: (query.manifest().source.batch_id or 0) >= 2)
    query.stop()
    numbers = sorted(row["number"] for row in rows_in(shop.tmp_path))
    assert numbers == list(range(len(first), len(first) + len(numbers)))
