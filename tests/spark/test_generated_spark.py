"""Pipelines drawn from seeds on Spark; `make generate-spark N=200` runs more of them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import penstock as pen
from penstock.testing.tables import Memory, memory_table
from tests.generated.on_spark import difference_on_spark
from tests.generated.oracle import Oracle
from tests.generated.program import draw_program
from tests.support.spark_streams import finish, stream, write_files


@pytest.mark.parametrize("seed", range(4))
def test_a_generated_pipeline_gives_on_spark_what_duckdb_gives(spark: SparkSession, seed: int) -> None:
    assert difference_on_spark(spark, Oracle(), draw_program(seed, on_spark=True)) == ""


def test_a_source_may_have_columns_with_dots_and_quotes_in_their_names(spark: SparkSession, tmp_path: Path) -> None:
    """Found by seeds 11 and 16: the one stage of a source alone is planned with the stream, by other code."""
    columns = {"n": [1, 2, 3], "x.y": ["a", None, "b"], "a b": [1, 2, 3], "`é'": [0, 0, 0]}
    write_files(tmp_path / "in", [pa.table(columns)])
    ddl = "n bigint, `x.y` string, `a b` bigint, ```é'` bigint"
    rows = pen.read(stream(spark, tmp_path / "in", ddl)).filter(pc.field("x.y").is_valid())
    finish(rows.write(Memory("odd-names")), checkpoint=tmp_path / "checkpoint")
    assert sorted(memory_table("odd-names").rows()["n"].to_pylist()) == [1, 3]
