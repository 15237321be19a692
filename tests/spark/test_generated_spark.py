"""Pipelines drawn from seeds on Spark; `make generate-spark N=200` runs more of them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.generated.on_spark import difference_on_spark
from tests.generated.oracle import Oracle
from tests.generated.program import draw_program


@pytest.mark.parametrize("seed", range(4))
def test_a_generated_pipeline_gives_on_spark_what_duckdb_gives(spark: SparkSession, seed: int) -> None:
    assert difference_on_spark(spark, Oracle(), draw_program(seed, on_spark=True)) == ""
