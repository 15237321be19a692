"""What is told of records that Kafka deleted; the plan is a model of Spark's, `make kafka` has a real one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from py4j.protocol import Py4JError

from penstock.protocol.sourceloss import SourceLoss, lost_offsets
from penstock.spark.quirks.kafkaloss import losses_of


def sequence(items: list[Any]) -> Any:
    return SimpleNamespace(size=lambda: len(items), apply=lambda number: items[number])


def returning(**values: Any) -> Any:
    return SimpleNamespace(**{name: lambda value=value: value for name, value in values.items()})


def offset(parts: Mapping[str, int]) -> Any:
    return returning(json=json.dumps({"orders": parts}))


def scan(
    start: Mapping[str, int],
    end: Mapping[str, int],
    begins: Mapping[str, int] | None,
    times: int,
    skipped: int | None = None,
) -> Any:
    pairs = [returning(_1=returning(toString=f"orders-{part}"), _2=at) for part, at in (begins or {}).items()]

    def fetch() -> Any:
        if begins is None:
            raise Py4JError("no answer")
        return returning(toSeq=sequence(pairs))

    reader = SimpleNamespace(fetchEarliestOffsets=fetch)
    stream = returning(getClass=returning(getName="org.apache.KafkaMicroBatchStream"), kafkaOffsetReader=reader)
    values = {"dataLoss": times} | ({} if skipped is None else {"offsetOutOfRange": skipped})
    metrics = SimpleNamespace(contains=lambda name: name in values, apply=lambda name: returning(value=values[name]))
    return returning(metrics=metrics, stream=stream, start=offset(start), end=offset(end))


def plan(*leaves: Any) -> Any:
    return returning(collectLeaves=sequence(list(leaves)))


def test_lost_offsets_are_counted_from_where_the_partition_begins_now() -> None:
    loss = losses_of(plan(scan({"0": 10, "1": 5}, {"0": 50, "1": 9}, {"0": 40, "1": 0}, 1)))
    assert loss == [SourceLoss("orders-0 from 10 to 39", 30)]


def test_what_lies_behind_the_micro_batch_is_counted_by_a_later_one() -> None:
    loss = losses_of(plan(scan({"0": 10}, {"0": 50}, {"0": 400}, 1)))
    assert loss == [SourceLoss("orders-0 from 10 to 49", 40)]


def test_what_is_deleted_after_it_was_read_is_not_counted() -> None:
    loss = losses_of(plan(scan({"0": 10}, {"0": 50}, {"0": 45}, 1, skipped=30)))
    assert loss == [SourceLoss("30 offsets of: orders-0 from 10 to 44", 30)]


def test_a_micro_batch_that_was_read_twice_is_counted_once() -> None:
    loss = losses_of(plan(scan({"0": 10}, {"0": 50}, {"0": 400}, 2, skipped=80)))
    assert loss == [SourceLoss("orders-0 from 10 to 49", 40)]


def test_nothing_is_asked_where_spark_has_missed_nothing() -> None:
    assert losses_of(plan(scan({"0": 10}, {"0": 50}, None, 0))) == []


def test_a_loss_is_told_without_a_count_where_the_broker_does_not_answer() -> None:
    assert losses_of(plan(scan({"0": 10}, {"0": 50}, None, 1))) == [SourceLoss("some records could not be read", None)]


def test_spark_has_counted_also_where_the_broker_does_not_answer() -> None:
    loss = losses_of(plan(scan({"0": 10}, {"0": 50}, None, 1, skipped=40)))
    assert loss == [SourceLoss("some records could not be read", 40)]


def test_a_partition_that_is_gone_has_no_count() -> None:
    assert losses_of(plan(scan({"0": 10, "1": 3}, {"0": 50}, {}, 0))) == [SourceLoss("orders-1 is gone", None)]
    assert losses_of(plan(scan({"0": 10}, {"0": 4}, {}, 0))) == [SourceLoss("orders-0 was made anew", None)]


def test_other_sources_and_other_plans_tell_nothing() -> None:
    files = returning(metrics=SimpleNamespace(contains=lambda _: False))
    assert losses_of(plan(files)) == []
    assert losses_of(SimpleNamespace()) == []


def test_of_many_partitions_the_first_are_named() -> None:
    end = {f"orders-{part}": 10 for part in range(30)}
    loss = lost_offsets({}, end, dict.fromkeys(end, 10), told=True)
    assert loss is not None
    assert loss.offsets == 300
    assert loss.what.endswith("and 20 more")
