"""The pipelines of chaos: those of the rescale matrix, one whose results wait for processing time, one that calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import penstock as pen
from tests.spark.matrix_data import Faults, Input
from tests.spark.matrix_shapes import SHAPES as MATRIX_SHAPES
from tests.spark.matrix_shapes import Count, Shape, check_table, read, takes
from tests.support.spark_streams import paimon, rows_in


class Later(pen.KeyedProcess):
    """Holds records back for a moment of processing time; numbers them when it lets them go."""

    output = "source string, number bigint, key bigint, seq bigint"
    waiting = pen.list_state("bigint")
    seen = pen.value_state("bigint")

    def process(self, key, rows, state, out, timers):
        state.waiting.extend(row["number"] for row in rows)
        timers.after("200 ms", "later")

    def on_timer(self, key, time, state, out, timers):
        for number in state.waiting:
            state.seen = (state.seen or 0) + 1
            out.emit(source="a", number=number, key=key["key"], seq=state.seen)
        state.waiting.clear()


def _timers(spark: SparkSession, folder: Path, cost: float) -> Sequence[pen.Output]:
    later = read(spark, folder, "a").key_by("key").process(Later, name="later")
    return [later.map_batches(takes(cost), name="slow").write(paimon(folder))]


class Ask(pen.AsyncFunction):
    """Hands a record on after a call of some milliseconds, some ten times as long."""

    def __init__(self, cost_s: float) -> None:
        self.cost_s = cost_s

    async def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(self.cost_s * 20 * (10 if row["number"] % 17 == 0 else 1))
        return row


UNORDERED = "shop.unordered"


def _asynchronous(spark: SparkSession, folder: Path, cost: float) -> Sequence[pen.Output]:
    source = read(spark, folder, "a")
    asked = source.map_async(Ask(cost), concurrency=8, name="asked")
    counted = asked.key_by("key").process(Count, name="count")
    unordered = source.map_async(Ask(cost), concurrency=8, ordered=False, name="unordered")
    return [counted.write(paimon(folder)), unordered.write(paimon(folder, UNORDERED), name="unordered_rows")]


def _asynchronous_checks(faults: Faults, folder: Path, data: Input) -> None:
    check_table(faults, folder, data)
    found = Counter(row["number"] for row in rows_in(folder, UNORDERED))
    wanted = Counter(row["number"] for row in data.rows())
    faults.lost += (wanted - found).total()
    faults.duplicated += (found - wanted).total()


TIMERS = "timers"
SHAPES: dict[str, Shape] = {
    **MATRIX_SHAPES,
    TIMERS: Shape(_timers),
    "asynchronous": Shape(_asynchronous, checks=_asynchronous_checks),
}
