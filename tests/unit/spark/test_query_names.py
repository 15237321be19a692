"""A streaming query gets the first name that is free, also when another thread is faster, without Spark."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from pyspark.errors import IllegalArgumentException

from penstock.spark.quirks.querynames import start_named


def session_with(*names: str | None) -> Any:
    """Each look at the active queries finds one more of them."""
    streams = mock.Mock()
    found = [[mock.Mock() for _ in names[:count]] for count in range(len(names) + 1)]
    for queries in found:
        for query, name in zip(queries, names, strict=False):
            query.name = name
    type(streams).active = mock.PropertyMock(side_effect=[*found, *[found[-1]] * 9])
    return mock.Mock(streams=streams)


def writer_that_refuses(*refused: str) -> Any:
    writer = mock.Mock()

    def named(name: str) -> Any:
        start = mock.Mock(return_value=name)
        if name in refused:
            start.side_effect = IllegalArgumentException("already active")
        return mock.Mock(start=start)

    writer.queryName.side_effect = named
    return writer


def test_a_name_that_is_taken_between_the_look_and_the_start_gets_a_number() -> None:
    assert start_named(writer_that_refuses("totals"), "totals", session_with("totals")) == "totals-2"


def test_another_refusal_is_raised() -> None:
    with pytest.raises(IllegalArgumentException):
        start_named(writer_that_refuses("totals"), "totals", session_with(None))
