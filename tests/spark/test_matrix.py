"""A representative third of the rescale matrix; `make matrix` runs all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.matrix import Case, Run, representative

SEED = 1


@pytest.mark.parametrize("case", representative(SEED), ids=str)
def test_no_record_is_lost_duplicated_or_overtaken_by_a_rescale(
    spark: SparkSession, tmp_path: Path, case: Case
) -> None:
    """A8, A10, B2, B3, B7, B8, B9, B10: fail, restore at another parallelism, again and again."""
    outcome = Run(spark, case, tmp_path)()
    assert not outcome.faults.any(), f"{case}: {outcome.faults}"
