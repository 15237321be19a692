"""The benchmarks' peers do the whole job: a peer that skips work would make every comparison worthless."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from benchmarks import data, peers
from benchmarks.measure import stream_files
from benchmarks.session import with_settings

pytestmark = pytest.mark.slow
FILES, ROWS = 3, 1_000


@pytest.fixture
def input_dir(tmp_path: Path) -> Path:
    return data.generate(tmp_path / "input", files=FILES, rows_per_file=ROWS, keys=50, hot_share=0.5)


def totals_of(folder: Path) -> dict[int, tuple[int, int]]:
    totals = pq.read_table(folder).group_by("key").aggregate([([], "count_all"), ("amount", "sum")])
    return {row["key"]: (row["count_all"], row["amount_sum"]) for row in totals.to_pylist()}


@pytest.mark.parametrize("api", get_args(peers.KeyedPython))
def test_per_key_python_peers_arrive_at_the_right_totals(
    spark: SparkSession, input_dir: Path, tmp_path: Path, api: peers.KeyedPython
) -> None:
    latest: dict[int, tuple[int, int]] = {}
    with with_settings(spark, peers.STORES["rocksdb-changelog"]):
        stream = peers.keyed_totals(stream_files(spark, input_dir), api)
        query = (
            stream.writeStream.outputMode("update")
            .foreachBatch(lambda batch, _: latest.update({row.key: (row.n, row.total) for row in batch.collect()}))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert latest == totals_of(input_dir)


@pytest.mark.parametrize("store", get_args(peers.StateStore))
def test_the_built_in_aggregate_runs_on_every_state_store(
    spark: SparkSession, input_dir: Path, store: peers.StateStore
) -> None:
    run = peers.native_aggregate(spark, input_dir, store=store, partitions=2, warmup=1)
    assert (run.rows, len(run.batch_s)) == ((FILES - 1) * ROWS, FILES - 1)
    assert run.settings[peers.PROVIDER] == peers.STORES[store][peers.PROVIDER]


def test_settings_of_a_run_do_not_outlive_it(spark: SparkSession, input_dir: Path) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    peers.native_aggregate(spark, input_dir, store="rocksdb", partitions=3, warmup=1)
    assert spark.conf.get("spark.sql.shuffle.partitions") == before


@pytest.mark.parametrize("quick_logs", [False, True])
def test_the_ceiling_reads_every_row(spark: SparkSession, input_dir: Path, quick_logs: bool) -> None:
    run = peers.best_of(peers.ceiling, spark, input_dir, partitions=(2, 4), quick_logs=quick_logs, warmup=1)
    assert run.rows == (FILES - 1) * ROWS


def test_the_ceiling_reported_reads_every_row(spark: SparkSession, input_dir: Path) -> None:
    run = peers.best_of(peers.ceiling_reported, spark, input_dir, partitions=(2,), warmup=1)
    assert run.rows == (FILES - 1) * ROWS


def test_the_ceilings_function_counts_what_it_is_given() -> None:
    batches = [pa.record_batch({"key": [1, 1, 2], "amount": [1, 2, 3]})] * 2
    assert [out.to_pydict() for out in peers.count_rows(batches)] == [{"rows": [6]}]


@pytest.mark.parametrize("how", ["mapInPandas", "applyInPandas"])
def test_a_slow_batch_takes_as_long_as_its_hot_key(spark: SparkSession, input_dir: Path, how: str) -> None:
    run = peers.slow_operator(spark, input_dir, partitions=2, how=how, cost_s=0.001)
    assert min(run.batch_s) >= 0.5 * ROWS * 0.001
