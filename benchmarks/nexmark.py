"""Nexmark queries 4, 5, 7 and 8 against Structured Streaming on the same files, where it can run them.

Query 4 joins two streams and aggregates the pairs without a window. Structured Streaming refuses that, so there is
nothing to compare it with. Query 8 joins by an interval instead of a window, on both sides.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import penstock as pen
from benchmarks import timed
from benchmarks.measure import Measured, best, measure
from benchmarks.peers import STORES, StateStore, best_of
from benchmarks.verdict import Verdicts
from examples.nexmark.generate import DELAY_S, SCHEMAS, generate
from examples.nexmark.queries import hot_items, price_per_category
from penstock.api.stream import Stream

EVENTS_PER_FILE, FILES, WARM_UP = 200_000, 7, 2
MARK = 1.5
STORES_TRIED: tuple[StateStore, ...] = ("in-memory", "rocksdb-changelog")
Frames = Mapping[str, DataFrame]


@dataclass(frozen=True, slots=True)
class Query:
    """`native` is None where Structured Streaming refuses the query."""

    title: str
    reads: tuple[str, ...]
    build: Callable[[Mapping[str, Stream]], Stream]
    native: Callable[[Frames], DataFrame] | None


def run(spark: SparkSession, verdicts: Verdicts) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        for name, query in QUERIES.items():
            source = Path(folder) / name
            generate(source, EVENTS_PER_FILE * FILES, FILES, seed=1)
            for kind in SCHEMAS.keys() - set(query.reads):
                shutil.rmtree(source / kind)
            _compare(spark, verdicts, source, f"{name}, {query.title}", query)


def _compare(spark: SparkSession, verdicts: Verdicts, source: Path, title: str, query: Query) -> None:
    mine = best([_ours(spark, source, title, query, parallelism) for parallelism in (2, 4)])
    verdicts.note(str(mine))
    if query.native is None:
        return
    theirs = best([best_of(_native, spark, source, title=title, query=query, store=store) for store in STORES_TRIED])
    verdicts.note(str(theirs))
    verdicts.at_least(f"{title}, to Structured Streaming", mine.rows_per_s / theirs.rows_per_s, MARK, "×")


def _frames(spark: SparkSession, source: Path, query: Query) -> dict[str, DataFrame]:
    return {
        kind: spark.readStream.schema(SCHEMAS[kind]).option("maxFilesPerTrigger", 1).parquet(str(source / kind))
        for kind in query.reads
    }


def _ours(spark: SparkSession, source: Path, title: str, query: Query, parallelism: int) -> Measured:
    def build() -> Any:
        frames = _frames(spark, source, query)
        streams = {
            kind: pen.read(frame, name=kind, event_time="ts", watermark=f"{DELAY_S} s")
            for kind, frame in frames.items()
        }
        return query.build(streams).write(pen.Discard())

    return timed.run_ours(build, name=f"{title}, {parallelism} subtasks", warmup=WARM_UP, parallelism=parallelism)


def _native(
    spark: SparkSession, source: Path, *, title: str, query: Query, store: StateStore, partitions: int
) -> Measured:
    native = query.native
    assert native is not None

    def build(_: DataFrame) -> DataStreamWriter:
        frames = {
            kind: frame.withWatermark("ts", f"{DELAY_S} seconds")
            for kind, frame in _frames(spark, source, query).items()
        }
        return native(frames).writeStream.outputMode("append").format("noop")

    settings = {**STORES[store], "spark.sql.shuffle.partitions": str(partitions)}
    name = f"{title}, Spark, {store} store, {partitions} partitions"
    return measure(spark, source, build, name=name, warmup=WARM_UP, settings=settings)


def highest_bids(streams: Mapping[str, Stream]) -> Stream:
    """The highest bid of each ten seconds: of each bidder first, so that no subtask has all of it."""
    windows = streams["bids"].key_by("bidder").window(pen.tumbling_window("10 s"))
    highest = windows.aggregate(price=pen.max("price"), name="of_each_bidder")
    return highest.key_by("window_end").aggregate(price=pen.max("price"), name="highest")


def new_sellers(streams: Mapping[str, Stream]) -> Stream:
    """Who opens an auction within ten seconds of registering."""
    persons = streams["persons"].select("id", "name", "ts").key_by("id")
    auctions = streams["auctions"].select("id AS auction", "seller", "ts").key_by("seller")
    return persons.join(auctions, within=("0 s", "10 s"), name="new_sellers")


def _hot_items(frames: Frames) -> DataFrame:
    counts = frames["bids"].groupBy(F.window("ts", "10 seconds", "2 seconds"), "auction").agg(F.count("*").alias("n"))
    return counts.groupBy("window").agg(F.max("n").alias("n"))


def _highest_bids(frames: Frames) -> DataFrame:
    return frames["bids"].groupBy(F.window("ts", "10 seconds")).agg(F.max("price").alias("price"))


def _new_sellers(frames: Frames) -> DataFrame:
    persons, auctions = frames["persons"].alias("p"), frames["auctions"].alias("a")
    near = "p.id = a.seller AND a.ts BETWEEN p.ts AND p.ts + INTERVAL 10 SECONDS"
    return persons.join(auctions, F.expr(near)).select("p.id", "p.name", "p.ts", F.col("a.id").alias("auction"))


QUERIES = {
    "q4": Query("average price per category", ("auctions", "bids"), price_per_category, None),
    "q5": Query("hot items", ("bids",), hot_items, _hot_items),
    "q7": Query("highest bid", ("bids",), highest_bids, _highest_bids),
    "q8": Query("new sellers", ("persons", "auctions"), new_sellers, _new_sellers),
}
