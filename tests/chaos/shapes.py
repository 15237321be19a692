"""The pipelines of chaos: those of the rescale matrix, and one whose results wait for processing time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

import penstock as pen
from tests.spark.matrix_shapes import SHAPES as MATRIX_SHAPES
from tests.spark.matrix_shapes import Shape, read, takes
from tests.spark.streams import paimon


class Later(pen.KeyedProcess):
    """Holds records back for a moment of processing time; numbers them when it lets them go."""

    output = "source string, number bigint, key bigint, seq bigint"
    waiting = pen.list_state("bigint")
    seen = pen.value("bigint")

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


TIMERS = "timers"
SHAPES: dict[str, Shape] = {**MATRIX_SHAPES, TIMERS: Shape(_timers)}
