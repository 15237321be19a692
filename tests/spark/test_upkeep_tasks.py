"""Upkeep gives large merges to Spark: a bucket per task, published by the driver."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.sinks.paimon.read import read_table
from penstock.sinks.paimon.sink import Paimon
from penstock.sinks.paimon.upkeep import keeper as keepers
from penstock.sinks.upkeep import Upkeep
from penstock.spark.tasks import SparkTasks
from tests.support.tables import commit, context

pytestmark = pytest.mark.spark


def test_buckets_are_merged_by_a_spark_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keepers, "ELSEWHERE_BYTES", 0)
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    sink = Paimon(str(tmp_path), "db.t", primary_key=["id"], buckets=3)
    sink.check(schema)
    committer = sink.open_committer("penstock-me")
    for n in range(1, 8):
        writer = sink.open_writer(context(n), schema)
        writer.write(pa.record_batch([list(range(300)), [n] * 300], schema=schema))
        commit(committer, n, writer.prepare())
    keeper = keepers.PaimonKeeper(sink.warehouse, sink.table, Upkeep(expire=False))
    keeper.use_tasks(SparkTasks(spark, "upkeep"))
    report = keeper.step()
    assert (report.failures, report.files_compacted, report.files_written) == ((), 21, 3)
    assert sorted(read_table(sink.warehouse, sink.table)["n"].to_pylist()) == [7] * 300
