"""The doctor on real executors."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from penstock.cli.findings import executor_findings
from penstock.spark.checkup import driver, executors_of
from penstock.store import open_store


def test_executors_answer_with_their_packages_and_see_the_checkpoint_s_storage(
    spark: SparkSession, tmp_path: Path
) -> None:
    store = open_store(str(tmp_path))
    store.create("doctor/probe", b"penstock")
    found = executors_of(spark, store.url, "doctor/probe")
    assert [finding.state for finding in executor_findings(driver(), found)] == ["ok"]
    (blind,) = {machine.store for machine in executors_of(spark, store.url, "doctor/other")}
    assert blind is not None
    assert "doctor/other" in blind
