"""Every operator against plain Spark SQL: any input, the barrier anywhere, crashes, a rescale in each epoch.

The engine runs without Spark here, so that there is time for many inputs; `test_oracle.py` does the same on Spark.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import penstock as pen
from penstock.testing import Harness, stream_of
from tests.spark.oracle import difference, sql_session
from tests.spark.oracle_cases import CASES
from tests.spark.oracle_data import BATCHES, DELAY_S, SCHEMA, SOURCES, input_of, make_views

EXAMPLES = int(os.environ.get("EXAMPLES", "4"))


class Noting(dict[str, pen.Stream]):
    """Knows which sources a pipeline was made of: only these can be fed."""

    def __init__(self, sources: Iterable[tuple[str, pen.Stream]]) -> None:
        super().__init__(sources)
        self.taken: set[str] = set()

    def __getitem__(self, source: str) -> pen.Stream:
        self.taken.add(source)
        return super().__getitem__(source)


@pytest.fixture(scope="module")
def sql(spark: SparkSession) -> SparkSession:
    return sql_session(spark)


@pytest.mark.parametrize("name", CASES)
@settings(
    deadline=None,
    max_examples=EXAMPLES,
    phases=[Phase.generate],  # a smaller example would take minutes to find
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    batches=BATCHES,
    parallelism=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    crashes=st.sets(st.integers(0, 4)),
    steps=st.sampled_from([None, 1, 3]),
)
def test_an_operator_gives_what_spark_sql_gives(
    sql: SparkSession, name: str, batches: Any, parallelism: list[int], crashes: set[int], steps: int | None
) -> None:
    """D1, D2, D3, D4, D5, D8, A2, A8, A10, B2."""
    case, data = CASES[name], input_of(batches)
    sources = Noting(
        (source, stream_of(SCHEMA, source, event_time="ts", watermark=f"{DELAY_S} s")) for source in SOURCES
    )
    stream = case.build(sources)
    sides = {side: stream.side(side) for side in case.sides}
    harness = Harness(stream, parallelism=parallelism[0], steps=steps, **sides)
    for number, batch in enumerate(data.batches):
        harness.rescale(parallelism[number % len(parallelism)])
        if number in crashes:
            harness.crash()
        harness.feed(**{source: batch[source] for source in sources.taken})
    harness.settle()
    make_views(sql, data)
    assert difference(sql, case, harness.output()) == "", f"\n{data}"
