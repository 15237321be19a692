"""Pipelines with every kind of state, and rows for them: what the tables of a folder are tested with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import penstock as pen
from penstock.testing import Harness, stream_of

ROWS = pa.schema(
    {
        "user": pa.int64(),
        "shop": pa.string(),
        "x": pa.float64(),
        "price": pa.decimal128(10, 2),
        "ts": pa.timestamp("us", "UTC"),
    }
)
BEGIN = datetime(2026, 11, 1, tzinfo=UTC)


def rows(random: Random, count: int, users: int = 12) -> list[dict[str, Any]]:
    return [
        {
            "user": random.choice([None, *range(users)]),
            "shop": random.choice(["a", "b", None, "é"]),
            "x": random.choice([None, -0.0, 1.5, float("nan"), random.uniform(-9, 9)]),
            "price": random.choice([None, 1, 2, 3]),
            "ts": BEGIN + timedelta(seconds=random.randrange(600)),
        }
        for _ in range(count)
    ]


class Sums(pen.KeyedProcess):
    """Values, lists, maps and timers."""

    output = "user bigint, total double"
    total = pen.value_state("double")
    seen = pen.list_state("string")
    by_shop = pen.map_state("string", "bigint")

    def process(self, key: Any, rows: Any, state: Any, out: Any, timers: Any) -> None:
        for row in rows:
            state.total = (state.total or 0.0) + 1.0
            state.seen = [*state.seen, row["shop"]][-3:]
            state.by_shop[str(row["shop"])] = state.by_shop.get(str(row["shop"]), 0) + 1
        timers.after("1 h", name="later")

    def on_timer(self, key: Any, time: Any, state: Any, out: Any, timers: Any) -> None:
        out.emit(user=key["user"], total=state.total)


class Mortal(pen.KeyedProcess):
    """Odd keys expire as a whole after 10 s, even ones in part."""

    output = "user bigint"
    short = pen.value_state("bigint", ttl="10 s")
    long = pen.value_state("bigint", ttl="1 h")

    def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
        state.short = 1
        if (key["user"] or 0) % 2 == 0:
            state.long = 2


class Slices(pen.BatchProcess):
    """State as columns."""

    output = pa.schema([("user", pa.int64()), ("n", pa.int64())])
    n = pen.value_state(pa.int64())

    def process(self, batch: pa.RecordBatch, keys: Any, state: Any) -> Any:
        added = np.bincount(keys.numbers, minlength=keys.count).astype(np.int64)
        state.n = pc.add(state.n.fill_null(0), pa.array(added))
        return pa.RecordBatch.from_arrays([keys.batch["user"], state.n], ["user", "n"])


class Limits(pen.ConnectProcess):
    """A broadcast map beside state per key."""

    inputs = ("a", "b")
    output = "user bigint"
    n = pen.value_state("bigint")
    limits = pen.broadcast_map("string", "double")

    def process(self, port: str, key: Any, rows: Any, state: Any, out: Any) -> None:
        state.n = (state.n or 0) + len(list(rows))

    def process_broadcast(self, port: str, rows: Any, broadcast: Any) -> None:
        for row in rows:
            broadcast.limits[str(row["shop"])] = row["x"]


def _plain(name: str = "source") -> Any:
    return stream_of(ROWS, name)


def _timed(name: str = "source") -> Any:
    return stream_of(ROWS, name, event_time="ts", watermark="30 s")


def _windowed(window: Any) -> Any:
    return _timed().key_by("user").window(window)


AGGREGATES: dict[str, Any] = {
    "n": pen.count(),
    "total": pen.sum("price"),
    "mean_x": pen.mean("price"),
    "spread": pen.stddev("price"),
    "shops": pen.count_distinct("shop"),
    "about": pen.approx_count_distinct("shop"),
    "newest": pen.last("shop"),
    "some": pen.collect_list("shop", 3),
}


def feed_rows(harness: Harness, random: Random) -> None:
    harness.feed(rows(random, random.randrange(60)))


def feed_both(harness: Harness, random: Random) -> None:
    harness.feed(a=rows(random, random.randrange(40)), b=rows(random, random.randrange(40)))


@dataclass(frozen=True)
class Case:
    """A stream whose operator is called `it`, its tables of state, and how it is fed."""

    make: Callable[[], Any]
    tables: tuple[str, ...] = ("",)
    feed: Callable[[Harness, Random], None] = feed_rows


CASES: dict[str, Case] = {
    "aggregate": Case(lambda: _plain().key_by("user", "shop").aggregate(name="it", **AGGREGATES)),
    "top_n": Case(lambda: _plain().key_by("user").top_n(3, by="x", name="it")),
    "process": Case(
        lambda: _timed().key_by("user").process(Sums, name="it"), ("", "timers", "event_timers", "processing_timers")
    ),
    "expiring": Case(lambda: _plain().key_by("user").process(Mortal, name="it")),
    "batch_process": Case(lambda: _plain().key_by("user").process(Slices, name="it")),
    "deduplicate": Case(lambda: _plain().key_by("user").deduplicate(columns="shop", name="it")),
    "deduplicate within": Case(lambda: _timed().key_by("user").deduplicate(within="1 min", name="it")),
    "tumbling": Case(
        lambda: _windowed(pen.tumbling_window("1 min")).aggregate(name="it", **AGGREGATES), ("", "progress")
    ),
    "sliding": Case(
        lambda: _windowed(pen.sliding_window("1 min", every="20 s")).aggregate(name="it", n=pen.count()),
        ("", "progress"),
    ),
    "session": Case(
        lambda: _windowed(pen.session_window("40 s")).aggregate(name="it", **AGGREGATES), ("", "timers", "progress")
    ),
    "top_n of windows": Case(
        lambda: _timed().key_by("user").top_n(2, by="x", window=pen.tumbling_window("1 min"), name="it"),
        ("", "progress"),
    ),
    "join": Case(
        lambda: _timed("a").key_by("user").join(_timed("b").key_by("user"), within="20 s", how="full", name="it"),
        ("left", "right", "left_deadlines", "right_deadlines"),
        feed_both,
    ),
    "connect": Case(
        lambda: _plain("a").key_by("user").connect(_plain("b").broadcast(), process=Limits, name="it"),
        ("", "limits"),
        feed_both,
    ),
}
