"""`filter` and its alias `where`: one method for SQL, Arrow expressions and functions. SQL itself: test_sql.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as pen
from penstock.errors import PipelineError
from penstock.testing import Harness, stream_of

Method = Callable[..., pen.Stream]


@pytest.fixture(params=["filter", "where"])
def method(request: pytest.FixtureRequest) -> Method:
    stream = stream_of(pa.schema([("v", pa.int64())])).map_batches(lambda batch: batch)
    bound: Method = getattr(stream, request.param)
    return bound


@pytest.mark.parametrize("condition", [pc.field("v") > 1, lambda batch: pc.greater(batch["v"], 1)])
def test_rows_for_which_an_expression_or_a_function_is_true_are_kept(method: Method, condition: Any) -> None:
    harness = Harness(method(condition))
    assert harness.feed([{"v": 1}, {"v": 2}]) == [{"v": 2}]


def test_sql_behind_an_operator_is_computed_by_arrow(method: Method) -> None:
    assert Harness(method("v > 1 AND v <> 3", name="large")).feed([{"v": n} for n in range(5)]) == [{"v": 2}, {"v": 4}]


def test_sql_behind_an_operator_that_arrow_does_not_know_says_what_can_be_used(method: Method) -> None:
    with pytest.raises(PipelineError, match=r"the function soundex\(\) is not known") as raised:
        method("soundex(v) > 1")
    assert "an Arrow expression" in raised.value.next_step


@pytest.mark.parametrize("given", [{"name": "large"}, {"on_error": "dead_letter"}])
def test_sql_in_the_source_takes_nothing_that_only_an_operator_has(given: dict[str, str]) -> None:
    source = dataclasses.replace(stream_of(pa.schema([("v", pa.int64())])).node, frame=object())  # type: ignore[type-var]
    with pytest.raises(PipelineError, match="no operator to name") as raised:
        pen.Stream(source).filter("v > 1", **given)  # type: ignore[arg-type]
    assert next(iter(given)) in raised.value.next_step


def test_something_else_is_refused_by_its_type(method: Method) -> None:
    with pytest.raises(PipelineError, match="filter got int 5"):
        method(5)
