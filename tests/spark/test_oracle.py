"""Every operator against plain Spark SQL, on Spark and into tables; `make oracle` does the same with more inputs."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.oracle_run import GROUPS, Run

SEED = 1


@pytest.mark.drawn
@pytest.mark.parametrize("group", GROUPS)
def test_operators_give_what_spark_sql_gives(spark: SparkSession, tmp_path: Path, group: str) -> None:
    """D1, D2, D3, D4, D5, D8, A2, A8, A10, B2: a failed query, one that is rescaled, one that runs to the end."""
    for seed in itertools.count(SEED):
        run = Run(spark, group, seed, tmp_path / str(seed))
        assert run() == {}
        if not run.joined:
            break
    assert run.in_flight, "no barrier fell, so the test shows less"
