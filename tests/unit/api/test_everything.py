"""Aggregates, windows and top_n over all rows, and rows spread over all subtasks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as pen
from penstock.errors import PipelineError
from penstock.testing import Harness, stream_of

START = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema({"user": pa.int64(), "amount": pa.int64(), "ts": pa.timestamp("us", "UTC")})


def source() -> pen.Stream:
    return stream_of(SCHEMA, event_time="ts")


def rows(*amounts: int, at: int = 0) -> list[dict[str, Any]]:
    return [{"user": amount % 3, "amount": amount, "ts": START + timedelta(seconds=at)} for amount in amounts]


@pytest.mark.parametrize("behind", [False, True])
def test_a_running_aggregate_needs_no_key(behind: bool) -> None:
    stream = source().filter("amount > 0") if behind else source()
    totals = stream.aggregate(n=pen.count(), twice=pen.sum("amount * 2"), name="totals")
    assert totals.schema.names == ["n", "twice"]
    harness = Harness(totals, parallelism=3)
    assert harness.feed(rows(1, 2, 3)) == [{"n": 3, "twice": 12}]
    harness.crash()
    harness.rescale(2)
    assert harness.feed(rows(4)) == [{"n": 4, "twice": 20}]


def test_windows_over_all_rows_have_late_rows_without_the_key_that_nobody_gave() -> None:
    hourly = source().window(pen.tumbling_window("1 h")).aggregate(total=pen.sum("amount"), name="hourly")
    assert hourly.schema.names == ["window_start", "window_end", "total"]
    assert hourly.event_time == "window_end"
    late = hourly.side("late")
    assert late.schema == SCHEMA
    harness = Harness(hourly, late=late)
    harness.feed(rows(1, 2))
    harness.feed(rows(9, at=7200))
    assert [row["total"] for row in harness.settle()] == [3]
    harness.feed(rows(5))
    assert [row["amount"] for row in harness.output("late")] == [5]


def test_the_best_of_all_rows() -> None:
    best = source().top_n(2, by="amount", name="best")
    assert best.schema.names == ["rank", "user", "amount", "ts"]
    assert [(row["rank"], row["amount"]) for row in Harness(best).feed(rows(5, 1, 9, 7))] == [(1, 9), (2, 7)]
    windowed = source().top_n(1, by="amount", window=pen.tumbling_window("1 h"))
    harness = Harness(windowed)
    harness.feed(rows(5, 9))
    assert [row["amount"] for row in harness.flush()] == [9]


def test_a_column_of_that_name_is_refused() -> None:
    with pytest.raises(PipelineError, match="has a column '__all'"):
        source().rename({"user": "__all"}).aggregate(n=pen.count())


@pytest.mark.parametrize("behind", [False, True])
def test_rebalanced_rows_of_one_partition_keep_all_subtasks_busy(behind: bool) -> None:
    seen: set[int] = set()

    def mapped(stream: pen.Stream) -> pen.Stream:
        return stream.map_batches(lambda batch: batch, SCHEMA, name="front") if behind else stream

    harness = Harness(mapped(source()).rebalance().map_batches(lambda batch: batch, SCHEMA, name="slow"), parallelism=4)
    run = harness._runner.cluster.rewrite

    def watch(reports: list[Any]) -> list[Any]:
        busy = [report for report in reports if any(part.consumed for part in report.inputs)]
        if busy and busy[0].stage != "front":
            seen.update(report.subtask for report in busy)
        return run(reports)

    harness._runner.cluster.rewrite = watch
    out = harness.feed(rows(*range(200)))
    assert sorted(row["amount"] for row in out) == list(range(200))
    assert seen == {0, 1, 2, 3}


class Priced(pen.ConnectProcess):
    inputs = ("orders", "prices")
    output = "user bigint, price bigint"
    prices = pen.broadcast_map("bigint", "bigint")
    n = pen.value_state("bigint")

    def process(self, name, key, rows, state, out):
        for row in rows:
            state.n = (state.n or 0) + 1
            out.emit(user=row["user"], price=state.prices[row["amount"]] + 0 * state.n)

    def process_broadcast(self, name, rows, state):
        for row in rows:
            if row["amount"] < 0:
                raise ValueError("a negative price")
            state.prices[row["user"]] = row["amount"]


def test_records_that_fail_in_connect_become_dead_letters_once_in_all_subtasks() -> None:
    orders, prices = stream_of(SCHEMA, "orders"), stream_of(SCHEMA, "prices")
    priced = orders.key_by("user").connect(prices.broadcast(), process=Priced, name="priced", on_error="dead_letter")
    harness = Harness(priced, parallelism=3, letters=priced.side("dead_letters"))
    given = [{"user": 1, "amount": 10}, {"user": 2, "amount": -5}, {"user": 3, "amount": 30}]
    out = harness.feed(orders=[{"user": n, "amount": n % 4} for n in range(40)], prices=given)
    assert sorted({row["price"] for row in out}) == [10, 30]
    assert len(out) == 20
    letters = harness.output("letters")
    assert sum("negative" in letter["message"] for letter in letters) == 1
    assert sum(letter["error"] == "KeyError" for letter in letters) == 20
    assert {row["n"] for row in harness.state("priced")} == {1}


class Halves(pen.BatchProcess):
    output = "user bigint, half bigint"
    n = pen.value_state("bigint")

    def process(self, batch, keys, state):
        state.n = pc.add(state.n.fill_null(0), 1)
        return pa.RecordBatch.from_arrays(
            [batch["user"], pc.divide_checked(pa.scalar(100), batch["amount"])], ["user", "half"]
        )


def test_a_failing_batch_process_names_the_record() -> None:
    harness = Harness(source().key_by("user").process(Halves, name="halves"), parallelism=1)
    harness.feed(rows(1, 2, 3))
    with pytest.raises(pen.PenstockError, match="divide by zero") as raised:
        harness.feed(rows(5, 4, 0, 7))
    assert '"amount": 0' in str(raised.value)
