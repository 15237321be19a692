"""Why a streaming query has ended. The objects are models; tests/spark/test_stopped_outside.py has those of Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from penstock.spark.quirks.ranout import stopped_early


def query(executor: str, *, ran_out: bool) -> Any:
    kind = SimpleNamespace(getName=lambda: f"org.apache.spark.sql.execution.streaming.{executor}")
    execution = SimpleNamespace(
        triggerExecutor=lambda: SimpleNamespace(getClass=lambda: kind), noNewData=lambda: ran_out
    )
    return SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=lambda: execution))


@pytest.mark.parametrize("ran_out", [True, False])
def test_a_query_that_has_looked_and_found_nothing_was_not_stopped(ran_out: bool) -> None:
    assert stopped_early(query("MultiBatchExecutor", ran_out=ran_out)) is not ran_out


def test_a_query_that_reads_one_micro_batch_does_not_look_for_more() -> None:
    assert not stopped_early(query("SingleBatchExecutor", ran_out=False))


def test_where_spark_keeps_it_differently_the_end_counts_as_the_end() -> None:
    def missing() -> None:
        raise Py4JError("Method noNewData([]) does not exist")

    strange: Any = SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=missing))
    assert not stopped_early(strange)
