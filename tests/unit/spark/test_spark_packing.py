"""What cannot travel to the workers is named before anything starts."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import PipelineError
from penstock.graph.compiler import compile_pipeline
from penstock.spark.packing import require_packable
from penstock.testing import stream_of
from penstock.testing.tables import Memory

SCHEMA = pa.schema([("v", pa.int64())])


class Locked(pen.AsyncFunction):
    """Holds what it should have opened in `open`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    async def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return row


def check(stream: pen.Stream) -> None:
    require_packable(compile_pipeline([stream.write(Memory("packed")).node]))


def test_an_operator_that_holds_a_lock_is_named_with_a_way_out() -> None:
    lock = threading.Lock()

    def locked(row: dict[str, Any]) -> list[dict[str, Any]]:
        with lock:
            return [row]

    for stream in (stream_of(SCHEMA).flat_map(locked, name="code"), stream_of(SCHEMA).map_async(Locked(), name="code")):
        with pytest.raises(PipelineError, match=r"the operator code cannot be sent .*lock") as caught:
            check(stream)
        assert "open()" in caught.value.next_step


def test_a_sink_that_cannot_travel_is_named() -> None:
    sink = Memory(threading.Lock())
    with pytest.raises(PipelineError, match="the sink sink cannot be sent"):
        require_packable(compile_pipeline([stream_of(SCHEMA).write(sink).node]))


def test_lambdas_and_what_they_hold_travel() -> None:
    step = [1]
    check(stream_of(SCHEMA).flat_map(lambda row: [{"v": row["v"] + step[0]}]))
