"""`filter` and its alias `where`: one method for SQL, Arrow expressions and functions. SQL itself: test_sql_text.py."""

from __future__ import annotations

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


def test_sql_behind_an_operator_is_refused_with_what_can_be_used_there(method: Method) -> None:
    with pytest.raises(PipelineError, match=r"filter\(\) with SQL behind an operator") as raised:
        method("v > 1")
    assert "an Arrow expression or a function" in raised.value.next_step


@pytest.mark.parametrize("given", [{"name": "large"}, {"on_error": "dead_letter"}])
def test_sql_takes_nothing_that_only_an_operator_has(method: Method, given: dict[str, str]) -> None:
    with pytest.raises(PipelineError, match="no operator to name") as raised:
        method("v > 1", **given)
    assert next(iter(given)) in raised.value.next_step


def test_something_else_is_refused_by_its_type(method: Method) -> None:
    with pytest.raises(PipelineError, match="filter got int 5"):
        method(5)
