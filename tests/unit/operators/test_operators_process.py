"""User code per key: state against a dictionary, what is refused, whom a failure blames (D3, D8)."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from penstock.errors import OperatorFailed, PipelineError
from penstock.operators.base import OperatorContext
from penstock.operators.process.declare import value_state
from penstock.operators.process.process import KeyedProcess, Process
from penstock.records import MAIN_STATE, Records
from tests.support.operator_harness import (
    Hashes,
    Rows,
    few_hashes,
    hashes_of,
    one_hash,
    plain,
    plain_rows,
    records,
    run_epochs,
)

INPUT = pa.schema([("user", pa.string()), ("x", pa.float64()), ("amount", pa.int64())])
KEYS = ("user", "x")
TYPES = {"bigint": pa.int64(), "string": pa.string(), "n bigint": pa.struct([("n", pa.int64())])}


def resolve(ddl: str) -> pa.DataType:
    return TYPES[ddl]


def declare(function: Any, keys: tuple[str, ...] = KEYS, schema: pa.Schema = INPUT) -> Process:
    return Process.declare("spend", schema, keys, function, resolve=resolve)


def batch_of(rows: Rows, schema: pa.Schema = INPUT) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=schema)


class Spend(KeyedProcess):
    """Remembers a sum, the last amounts and a mark; an amount of 0 forgets everything."""

    total = value_state("bigint")
    seen = value_state(pa.list_(pa.int64()))
    mark = value_state(pa.float64())
    output = pa.schema([("user", pa.string()), ("x", pa.float64()), ("total", pa.int64()), ("seen", pa.string())])

    def process(self, key: dict[str, Any], rows: Rows, state: Any, out: Any) -> None:
        for row in rows:
            assert (row["user"], plain(row["x"])) == (key["user"], plain(key["x"]))
            if row["amount"] == 0:
                state.total = state.seen = state.mark = None
            elif row["amount"] == 1:
                state.mark = -0.0 if state.mark == 0.0 else 0.0
            else:
                state.total = (state.total or 0) + row["amount"]
                state.seen = state.seen or []
                state.seen.append(row["amount"])  # changed in place, as users do
            out.emit(**key, total=state.total, seen=f"{state.seen} {state.mark}")


def spend_model(epochs: list[tuple[int, list[Rows]]]) -> list[Rows]:
    """The same by a dictionary."""
    states: dict[tuple[Any, ...], dict[str, Any]] = {}
    outputs = []
    for _, slices in epochs:
        output = []
        for row in (row for rows in slices for row in rows):
            key = (row["user"], plain(row["x"]))
            state = states.setdefault(key, {"total": None, "seen": None, "mark": None})
            if row["amount"] == 0:
                state.update(total=None, seen=None, mark=None)
            elif row["amount"] == 1:
                state["mark"] = -0.0 if state["mark"] == 0.0 else 0.0
            else:
                state.update(total=(state["total"] or 0) + row["amount"], seen=[*(state["seen"] or []), row["amount"]])
            seen = f"{state['seen']} {state['mark']}"
            output.append({"user": key[0], "x": key[1], "total": state["total"], "seen": seen})
        outputs.append(output)
    return outputs


ROW = st.fixed_dictionaries({
    "user": st.sampled_from(["a", "b", None]),
    "x": st.sampled_from([0.0, -0.0, math.nan, -math.nan, None]),
    "amount": st.integers(0, 5),
})  # fmt: skip
EPOCHS = st.lists(
    st.tuples(st.integers(1, 3), st.lists(st.lists(ROW, max_size=10), max_size=4)), min_size=1, max_size=4
)


def by_key(rows: Rows) -> dict[tuple[Any, ...], Rows]:
    found: dict[tuple[Any, ...], Rows] = {}
    for row in plain_rows(rows):
        found.setdefault((row["user"], row["x"]), []).append(row)
    return found


@pytest.mark.parametrize("hashes", [hashes_of, few_hashes, one_hash])
@settings(deadline=None, max_examples=40)
@given(epochs=EPOCHS)
def test_each_key_sees_its_rows_in_order_with_its_own_state(
    hashes: Hashes, epochs: list[tuple[int, list[Rows]]]
) -> None:
    """A8, D3: with state flushed, opened again and rescaled between epochs."""
    batches = [(parallelism, [batch_of(rows) for rows in slices]) for parallelism, slices in epochs]
    outputs = run_epochs(declare(Spend), KEYS, batches, hashes)
    for wanted, got in zip(spend_model(epochs), outputs, strict=True):
        assert by_key(got) == by_key(wanted)


ONE_KEY = pa.schema([("k", pa.int64()), ("v", pa.int64())])


class Count(KeyedProcess):
    output = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    n = value_state(pa.int64())

    def process(self, key: dict[str, Any], rows: Rows, state: Any, out: Any) -> None:
        state.n = (state.n or 0) + sum(row["v"] for row in rows)
        out.emit_many([{"k": key["k"], "n": state.n}])


def one_key(rows: list[tuple[int, int]]) -> pa.RecordBatch:
    return batch_of([{"k": k, "v": v} for k, v in rows], ONE_KEY)


def test_state_is_looked_up_once_per_slice_and_only_changes_are_written() -> None:
    spec = declare(Count, ("k",), ONE_KEY)
    state = mock.Mock()
    known = pa.RecordBatch.from_pylist([{"n": 7}] * 3, schema=spec.state_tables[MAIN_STATE].values)
    state.lookup.return_value = mock.Mock(values=known, found=np.ones(3, bool))
    operator = spec.build(OperatorContext({MAIN_STATE: state}))
    list(operator.process(records(one_key([(1, 5), (2, 0), (3, 0), (1, 1)]), ("k",))))
    assert [call[0] for call in state.method_calls] == ["lookup", "update"]
    _, keys, values, deleted = state.update.call_args.args
    assert (keys.to_pylist(), values.to_pylist(), deleted.tolist()) == ([{"k": 1}], [{"n": 13}], [False])


def test_a_key_whose_values_are_all_none_leaves_the_state() -> None:
    class Forget(Count):
        def process(self, key: dict[str, Any], rows: Rows, state: Any, out: Any) -> None:
            state.n = rows[-1]["v"] or None

    spec = declare(Forget, ("k",), ONE_KEY)
    state = mock.Mock()
    known = pa.RecordBatch.from_pylist([{"n": 7}, {"n": None}], schema=spec.state_tables[MAIN_STATE].values)
    state.lookup.return_value = mock.Mock(values=known, found=np.array([True, False]))
    hashes = np.array([1 << 40, 2 << 40])
    list(spec.build(OperatorContext({MAIN_STATE: state})).process(Records(one_key([(1, 0), (2, 0)]), hashes)))
    _, keys, _, deleted = state.update.call_args.args
    assert (keys.to_pylist(), deleted.tolist()) == ([{"k": 1}], [True])


@pytest.mark.parametrize(
    ("kind", "items"),
    [
        (pa.int64(), [2**63 - 1, 0, None]),
        (pa.float64(), [0.1, math.inf, None]),
        (pa.string(), ["ü", "", None]),
        (pa.bool_(), [True, False, None]),
        (pa.binary(), [b"\x00", b"", None]),
        (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
        (pa.timestamp("us", "UTC"), [dt.datetime(1969, 1, 1, 1, 1, 1, 1, tzinfo=dt.UTC), None]),
        (pa.decimal128(10, 2), [Decimal("-1.50"), None]),
        (pa.list_(pa.struct([("a", pa.int64())])), [[{"a": 1}, None], [], None]),
        (pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1, "b": None}, None]),
    ],
)
def test_state_of_every_type_comes_back_as_it_was_set(kind: pa.DataType, items: list[Any]) -> None:
    class Remember(KeyedProcess):
        kept = value_state(kind)
        output = pa.schema([("old", kind)])

        def process(self, key: dict[str, Any], rows: Rows, state: Any, out: Any) -> None:
            for row in rows:
                out.emit(old=state.kept)
                state.kept = items[row["v"]]

    epochs = [(1, [one_key([(1, number)])]) for number in [*range(len(items)), 0]]
    outputs = run_epochs(declare(Remember, ("k",), ONE_KEY), ("k",), epochs)
    assert [row["old"] for rows in outputs for row in rows] == [None, *items]


def test_a_process_without_state_needs_none() -> None:
    class Echo(KeyedProcess):
        output = "n bigint"

        def process(self, key: dict[str, Any], rows: Rows, state: Any, out: Any) -> None:
            out.emit(n=len(rows))

    spec = declare(Echo, ("k",), ONE_KEY)
    assert not spec.state_tables
    (output,) = spec.build(OperatorContext()).process(records(one_key([(1, 1), (2, 2), (1, 3)]), ("k",)))
    assert sorted(output.to_pydict()["n"]) == [1, 2]


def test_an_instance_is_opened_anew_for_every_attempt() -> None:
    class Opened(Count):
        def __init__(self, log: list[str]) -> None:
            self.log, self.opened = log, False

        def open(self) -> None:
            assert not self.opened, "opened twice"
            self.opened = True
            self.log.append("open")

    log: list[str] = []
    spec = declare(Opened(log), ("k",), ONE_KEY)
    run_epochs(spec, ("k",), [(2, [one_key([(1, 1)])]), (1, [])])
    assert log == ["open"] * 3


def fail(function: type[KeyedProcess], rows: list[tuple[int, int]]) -> OperatorFailed:
    with pytest.raises(OperatorFailed) as caught:
        run_epochs(declare(function, ("k",), ONE_KEY), ("k",), [(1, [one_key([(7, 2)])]), (1, [one_key(rows)])])
    return caught.value


def handle(body: Callable[[dict[str, Any], Any, Any], None]) -> type[KeyedProcess]:
    """A process that calls `body(row, state, out)` for each row."""

    class Handle(Count):
        def process(self, key: dict[str, Any], rows: Rows, state: Any, out: Any) -> None:
            for row in rows:
                body(row, state, out)
                row["v"] = "spoilt"

    return Handle


def set_state(item: object) -> Callable[[dict[str, Any], Any, Any], None]:
    def body(row: dict[str, Any], state: Any, out: Any) -> None:
        state.n = item if row["v"] >= 3 else 1

    return body


def set_unknown(row: dict[str, Any], state: Any, out: Any) -> None:
    if row["v"] == 3:
        state.totl = 1


def emit(**columns: Any) -> Callable[[dict[str, Any], Any, Any], None]:
    def body(row: dict[str, Any], state: Any, out: Any) -> None:
        out.emit(**columns if row["v"] == 3 else {"k": 1, "n": 1})

    return body


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda row, state, out: 1 // (row["v"] - 3), ["ZeroDivisionError", "test_operators_process.py:"]),
        (
            lambda row, state, out: state.totl if row["v"] == 3 else 0,
            ["no state 'totl'; declared is n", "pen.value_state"],
        ),
        (set_unknown, ["AttributeError", "no state 'totl'; declared is n"]),
        (set_state("text"), ["state 'n' is declared as int64 and was set to 'text'"]),
        (set_state(1.5), ["state 'n' is declared as int64 and was set to 1.5"]),
        (set_state(2**63), ["state 'n' is declared as int64"]),
        (emit(k=1), ["wanted the columns k, n; got k"]),
        (emit(k=1, n="text"), ["'n' is declared as int64"]),
        (emit(k=1, n=0.5), ["'n' is declared as int64", "float"]),
    ],
)
def test_a_failure_names_the_very_row(body: Callable[..., None], words: list[str]) -> None:
    """D8: also among many rows of one key, and though user code changed what it got."""
    error = fail(handle(body), [(1, 1), (7, 1), (7, 2), (1, 2), (7, 3), (7, 4), (7, 5), (2, 1)])
    for word in words:
        assert word in str(error)
    assert error.fields["operator"] == "spend"
    assert error.fields["record"] == '{"k": 7, "v": 3}'
    assert error.fields["note"] == "row 3 of 5 of this key in this slice"


def test_a_slice_that_fails_changes_nothing() -> None:
    """A6"""
    state = mock.Mock()
    spec = declare(handle(emit(k=1)), ("k",), ONE_KEY)
    known = pa.RecordBatch.from_pylist([{"n": 7}] * 2, schema=spec.state_tables[MAIN_STATE].values)
    state.lookup.return_value = mock.Mock(values=known, found=np.ones(2, bool))
    with pytest.raises(OperatorFailed):
        spec.build(OperatorContext({MAIN_STATE: state})).process(records(one_key([(1, 1), (2, 3)]), ("k",)))
    assert not state.update.called


def test_a_failing_open_is_the_operators_failure() -> None:
    class Closed(Count):
        def open(self) -> None:
            raise OSError("no connection")

    with pytest.raises(OperatorFailed, match="OSError: no connection"):
        declare(Closed, ("k",), ONE_KEY).build(OperatorContext({MAIN_STATE: mock.Mock()}))


class NoOutput(KeyedProcess):
    def process(self, key: Any, rows: Any, state: Any, out: Any) -> None: ...


class OneType(NoOutput):
    output = "bigint"


class BadDdl(NoOutput):
    output = "n bigintt"


class NoProcess(KeyedProcess):
    output = "n bigint"


class TooFew(NoProcess):
    def process(self, key: Any, rows: Any) -> None:  # type: ignore[override]
        ...


class Good(NoOutput):
    output = "n bigint"


class NotCalled(Good):
    total = value_state


class BadType(Good):
    total = value_state("bigintt")


class NoType(Good):
    total = value_state(int)  # type: ignore[arg-type]


class KeyName(Good):
    user = value_state("string")


class Needs(Good):
    def __init__(self, limit: int) -> None:
        self.limit = limit


class InInit(Good):
    def __init__(self) -> None:
        self.total = value_state("bigint")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (NoOutput, 'declare output = "user bigint, total bigint"'),
        (OneType, "names a type and no columns"),
        (BadDdl, "BadDdl.output is declared as 'n bigintt'"),
        (NoProcess, "has no process()"),
        (TooFew, "def process(self, key, rows, state, out)"),
        (NotCalled, 'total = pen.value_state("bigint")'),
        (BadType, "the state 'total' is declared as 'bigintt'"),
        (NoType, "the state 'total' is declared with <class 'int'>"),
        (KeyName, "'user' is a key or state column twice"),
        (Needs, "pass an instance: Needs(...)"),
        (InInit(), "in the class body"),
        (len, "pass a subclass of pen.KeyedProcess"),
        (dict, "pass a subclass of pen.KeyedProcess"),
    ],
)
def test_an_incomplete_class_is_refused_when_the_pipeline_is_built(function: Any, words: str) -> None:
    """E5"""
    with pytest.raises(PipelineError) as caught:
        declare(function)
    assert words in str(caught.value)
    assert "spend" in str(caught.value)


def test_a_subclass_inherits_state_and_may_declare_it_anew() -> None:
    class More(Spend):
        total = value_state(pa.float64())
        other = value_state("string")

    assert declare(More).state_tables[MAIN_STATE].values == pa.schema([
        ("total", pa.float64()), ("seen", pa.list_(pa.int64())), ("mark", pa.float64()), ("other", pa.string()),
    ])  # fmt: skip


def test_an_instance_with_arguments_is_accepted() -> None:
    assert declare(Needs(3)).output_schema == pa.schema([("n", pa.int64())])


def test_the_spec_travels_to_subtasks() -> None:
    class Local(Count):
        pass

    spec = cloudpickle.loads(cloudpickle.dumps(declare(Local, ("k",), ONE_KEY)))
    assert run_epochs(spec, ("k",), [(1, [one_key([(1, 2)])])]) == [[{"k": 1, "n": 2}]]
