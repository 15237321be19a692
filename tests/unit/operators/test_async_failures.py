"""Calls of map_async that end in unusual ways: the query never waits for them for ever (D5)."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import OperatorFailed
from penstock.operators.calls import calling
from penstock.testing import Harness, stream_of

SCHEMA = pa.schema([("v", pa.int64())])
ROW = {"v": 1}


class Odd(BaseException):
    """Something that no `except Exception` catches."""


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "BACKOFF_S", 0.0)


@pytest.mark.parametrize("error", [Odd, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_a_call_that_ends_itself_in_any_way_has_failed(error: type[BaseException]) -> None:
    async def ends_itself(row: dict[str, Any]) -> dict[str, Any]:
        raise error

    with pytest.raises(OperatorFailed, match=f"ended itself by {error.__name__}"):
        Harness(stream_of(SCHEMA).map_async(ends_itself)).feed([ROW])


def test_a_call_that_something_else_cancelled_is_repeated() -> None:
    tries = []

    async def cancelled_twice(row: dict[str, Any]) -> dict[str, Any]:
        tries.append(row)
        if len(tries) < 3:
            raise asyncio.CancelledError
        return row

    assert Harness(stream_of(SCHEMA).map_async(cancelled_twice, retries=2)).feed([ROW]) == [ROW]


class Opening(pen.AsyncFunction):
    """Opens in the way it is told to."""

    def __init__(self, how: str) -> None:
        self.how = how

    async def open(self) -> None:
        match self.how:
            case "waits":
                await asyncio.sleep(3600)
            case "exits":
                raise SystemExit(1)
            case "times out":
                raise TimeoutError("no route")

    async def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return row


@pytest.mark.parametrize(
    ("how", "message"),
    [("waits", r"did not end within 0\.1 s"), ("exits", "ended itself by SystemExit"), ("times out", "no route")],
)
def test_an_open_that_does_not_end_well_stops_the_query(how: str, message: str) -> None:
    with pytest.raises(OperatorFailed, match=message):
        Harness(stream_of(SCHEMA).map_async(Opening(how), timeout="0.1 s")).feed([ROW])
    assert "penstock-async" in {thread.name for thread in threading.enumerate()}
    assert Harness(stream_of(SCHEMA).map_async(Opening("well"), timeout="5 s")).feed([ROW]) == [ROW]
