"""What a user's class may declare, and what is refused when the pipeline is built (D3, D4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import OperatorFailed, PipelineError
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


def test_deleting_state_forgets_it() -> None:
    def forget(self: Any, key: Any, rows: Any, state: Any, out: Any) -> None:
        for row in rows:
            if row["v"]:
                state.one, state.many, state.mortal = row["v"], [row["v"]], 1
                state.by_name["a"] = row["v"]
            else:
                del state.one, state.many, state.by_name, state.mortal
                assert (state.one, state.many, state.by_name, state.mortal) == (None, [], {}, None)

    fields = {
        "one": pen.value_state("bigint"),
        "many": pen.list_state("bigint"),
        "by_name": pen.map_state("string", "bigint"),
    }
    code = keyed(process=forget, mortal=pen.value_state("bigint", ttl="1 h"), **fields)
    harness = Harness(stream_of(SCHEMA).key_by("k").process(code, name="p"))
    harness.feed([ROW])
    assert len(harness.state("p")) == 1
    harness.feed([{"k": 1, "v": 0}])
    assert harness.state("p") == []


def test_deleting_what_is_no_state_is_an_error_of_user_code() -> None:
    def forget(self: Any, key: Any, rows: Any, state: Any, out: Any) -> None:
        del state.two

    code = keyed(process=forget, one=pen.value_state("bigint", ttl="1 h"))
    with pytest.raises(OperatorFailed, match="there is no state 'two'; declared is one"):
        Harness(stream_of(SCHEMA).key_by("k").process(code)).feed([ROW])


def test_key_columns_may_be_called_like_those_of_timers() -> None:
    schema = pa.schema([("__name", pa.string()), ("__time", pa.int64())])

    class Timed(pen.KeyedProcess):
        output = pa.schema([("name", pa.string()), ("key", pa.string())])

        def process(self, key: Any, rows: Any, state: Any, out: Any, timers: Any) -> None:
            timers.after("1 s", "x")

        def on_timer(self, key: Any, time: Any, state: Any, out: Any, timers: Any) -> None:
            out.emit(name=timers.name, key=f"{key['__name']} {key['__time']}")

    harness = Harness(stream_of(schema).key_by("__name", "__time").process(Timed))
    harness.feed([{"__name": "a", "__time": 5}])
    assert harness.pass_time("2 s") == [{"name": "x", "key": "a 5"}]


def timed(name: str) -> pen.KeyedStream:
    return stream_of(pa.schema([("k", pa.int64()), (name, pa.timestamp("us"))]), name, event_time=name).key_by("k")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: stream_of(SCHEMA).connect(stream_of(SCHEMA), process=connecting()), "connect() got Stream"),
        (lambda: timed("a").connect(stream_of(SCHEMA), process=connecting()), "connect() got Stream"),
        (lambda: timed("a").connect(None, process=connecting()), "connect() got NoneType"),
        (lambda: timed("a").connect(timed("b"), process=connecting(), hold_back="ab"), "hold_back='ab'"),
        (lambda: stream_of(SCHEMA).union(timed("a")), "union() got KeyedStream"),
        (lambda: stream_of(SCHEMA).union([stream_of(SCHEMA)]), "union() got list"),
        (lambda: timed("a").join(stream_of(SCHEMA), within="1 s"), "join() got Stream"),
        (lambda: timed("a").join(timed("b"), within=("1 s",)), "within"),
        (lambda: timed("a").join(timed("b"), within=(None, "1 s")), "within"),
        (lambda: timed("a").join(timed("b"), within="1 s", suffixes=5), "suffixes are 5"),
        (lambda: timed("a").join(timed("b"), within="1 s", suffixes=(1, 2)), "suffixes are (1, 2)"),
        (lambda: timed("a").join(timed("b"), within="1 s", event_time=5), "event_time is 5"),
        (lambda: stream_of(SCHEMA).key_by(["k", 5]), "key column 5 does not exist"),
        (lambda: stream_of(SCHEMA).key_by(None), "key column None does not exist"),
        (lambda: Harness(stream_of(SCHEMA).flat_map(list, name=5)), "5 is not a name"),
        (lambda: Harness(stream_of(SCHEMA, 5).flat_map(list)), "5 is not a name"),
    ],
)
def test_wrong_arguments_are_named(build: Callable[[], object], message: str) -> None:
    with pytest.raises(pen.PenstockError) as caught:
        build()
    assert message in caught.value.seen
