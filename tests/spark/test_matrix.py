"""A drawn third of the shapes of the rescale matrix; `make test-slow` runs every shape, `make matrix` all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.matrix import Case, Run, representative, void

SEED = 1


@pytest.mark.drawn
@pytest.mark.parametrize("case", representative(SEED), ids=str)
def test_no_record_is_lost_duplicated_or_overtaken_by_a_rescale(
    spark: SparkSession, tmp_path: Path, case: Case
) -> None:
    """Fail, restore at another parallelism, again and again, each time with records in flight."""
    outcome = Run(spark, case, tmp_path)()
    assert void(case.shape, outcome) is None
    assert not outcome.faults.any(), f"{case}: {outcome.faults}"
