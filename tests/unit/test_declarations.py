"""What a user's class may declare, and what is refused when the pipeline is built (D3, D4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import PipelineError
from penstock.testing import Harness, stream_of

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
ROW = {"k": 1, "v": 9}


def process(self: Any, key: Any, rows: Any, state: Any, out: Any) -> None:
    out.emit_many(rows)


def keyed(**attributes: Any) -> type[pen.KeyedProcess]:
    return type("Code", (pen.KeyedProcess,), {"output": "k bigint, v bigint", "process": process, **attributes})


def connecting(**attributes: Any) -> type[pen.ConnectProcess]:
    own = {
        "inputs": ("a", "b"),
        "output": "k bigint",
        "process": lambda self, port, key, rows, state, out: None,
        "process_broadcast": lambda self, port, rows, broadcast: None,
    }
    return type("Code", (pen.ConnectProcess,), {**own, **attributes})


def build(function: Any) -> pen.Stream:
    if isinstance(function, type) and issubclass(function, pen.ConnectProcess):
        return stream_of(SCHEMA, "a").key_by("k").connect(stream_of(SCHEMA, "b").broadcast(), process=function)
    return stream_of(SCHEMA).key_by("k").process(function)


def refused(build: Callable[[], object]) -> PipelineError:
    with pytest.raises(PipelineError) as caught:
        build()
    return caught.value


def yields(self: Any, *arguments: Any) -> Any:
    yield arguments


async def waits(self: Any, *arguments: Any) -> None:
    return None


async def does_both(self: Any, *arguments: Any) -> Any:
    yield arguments


@pytest.mark.parametrize("body", [yields, waits, does_both])
@pytest.mark.parametrize("method", ["process", "on_timer", "open"])
@pytest.mark.parametrize("kind", [keyed, connecting])
def test_a_method_that_only_makes_a_generator_or_coroutine_is_refused(kind: Any, method: str, body: Any) -> None:
    """Called as any other, it would do nothing at all."""
    timed = {"process": lambda self, *arguments: None} if method == "on_timer" else {}
    error = refused(lambda: build(kind(**timed, **{method: body})))
    assert f"Code.{method} is" in error.seen


@pytest.mark.parametrize("body", [yields, waits])
def test_broadcast_code_that_only_makes_a_generator_or_coroutine_is_refused(body: Any) -> None:
    assert "process_broadcast is" in refused(lambda: build(connecting(process_broadcast=body))).seen


def test_code_over_slices_may_yield_batches_but_not_wait() -> None:
    def halves(self: Any, batch: pa.RecordBatch, keys: Any, state: Any) -> Any:
        yield batch.slice(0, 1)
        yield batch.slice(1)

    code = {"output": "k bigint, v bigint", "process": halves}
    assert Harness(build(type("Code", (pen.BatchProcess,), code))).feed([ROW, ROW]) == [ROW, ROW]
    waiting = type("Code", (pen.BatchProcess,), {**code, "process": waits})
    assert "process is async" in refused(lambda: build(waiting)).seen
