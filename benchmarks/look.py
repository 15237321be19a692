"""Reading the state of 50 million keys from outside: all of it with Spark, and one key without; epochs meanwhile."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

import penstock as pen
from benchmarks.verdict import Verdicts
from penstock.events import EpochPublished
from penstock.hashing import hash_columns
from penstock.protocol.codec import encode_manifest
from penstock.protocol.ids import CheckpointId
from penstock.protocol.keygroups import KeyGroupRange, order_of
from penstock.protocol.layout import manifest_path
from penstock.protocol.manifest import EdgeShape, Manifest, OperatorShape, PipelineShape, StateFile
from penstock.protocol.recover import first_manifest
from penstock.records import StateSchema
from penstock.state.layout import STATE_KIND, file_schema, groups_of_orders
from penstock.store import LocalStore
from penstock.store.arrowfile import ArrowFileWriter

KEYS = int(os.environ.get("PENSTOCK_LOOK_KEYS", "50_000_000"))
GROUPS = 128
FILES = 4
BATCH_ROWS = 1 << 20
RATE, OWN_KEYS = 20_000, 200_000
WARM_S, TURN_S, TURNS = 20.0, 10.0, 4
READER = """
import sys, time
import penstock as pen
while True:
    pen.open(sys.argv[1]).state("totals").count()
    print("scan", flush=True)
    time.sleep(0.2)
"""
"""As somebody who looks at the state again and again."""
SCHEMA = StateSchema(pa.schema({"user": pa.int64()}), pa.schema({"n": pa.int64(), "total": pa.int64()}))


def run(spark: SparkSession, verdicts: Verdicts) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        pen.register(spark)
        began = time.perf_counter()
        write_state(Path(folder), KEYS)
        verdicts.note(f"{KEYS:,} keys written in {time.perf_counter() - began:.0f} s")
        state = spark.read.format("penstock").option("operator", "totals").option("columns", "n").load(folder)
        state.limit(1).collect()
        seconds = _seconds(lambda: state.count() == KEYS)
        verdicts.at_least("count(*) over state on two cores", KEYS / seconds / 1e6, 5.0, "M rows/s")
        whole = spark.read.format("penstock").option("operator", "totals").load(folder)
        seconds = _seconds(lambda: whole.selectExpr("sum(n)").collect()[0][0] == KEYS)
        verdicts.note(f"sum of a column, all columns sent to Spark: {KEYS / seconds / 1e6:.1f}M rows/s")
        look = pen.open(folder)
        seconds = _seconds(lambda: look.state("totals", key=4711).to_pylist()[0]["total"] == 4711)
        verdicts.at_most("one key of them, without Spark", seconds * 1000, 1000, " ms")
        seconds = _seconds(lambda: whole.where("user = 4711").collect()[0]["total"] == 4711)
        verdicts.note(f"the same by WHERE user = 4711: {seconds:.1f} s")
    beside(spark, verdicts)


def beside(spark: SparkSession, verdicts: Verdicts) -> None:
    """A query with a light load, in turn alone and while another process reads its state again and again."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        epochs: list[EpochPublished] = []
        clicks = spark.readStream.format("rate").option("rowsPerSecond", RATE).load()
        users = pen.read(clicks.selectExpr(f"value % {OWN_KEYS} AS user"), name="clicks").key_by("user")
        query = (
            users.aggregate(n=pen.count(), name="totals")
            .write(pen.Discard())
            .start(
                f"{folder}/checkpoint",
                epoch="500 ms",
                parallelism=2,
                on_event=lambda event: epochs.append(event) if isinstance(event, EpochPublished) else None,
            )
        )
        try:
            time.sleep(WARM_S)
            alone: list[float] = []
            watched: list[float] = []
            scans = 0
            for _ in range(TURNS):
                alone += _durations(epochs, TURN_S)
                command = [sys.executable, "-c", READER, f"{folder}/checkpoint"]
                with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
                    watched += _durations(epochs, TURN_S)
                    reader.terminate()
                    scans += len(reader.communicate()[0].split())
        finally:
            query.stop()
        before, after = statistics.median(alone), statistics.median(watched)
        verdicts.note(
            f"{len(alone)} epochs alone, {len(watched)} beside {scans} scans of {OWN_KEYS:,} keys by a process"
        )
        verdicts.note(f"epochs took {before:.3f} s alone, {after:.3f} s beside it (medians)")
        verdicts.at_most("epochs while their state is read, divided by epochs alone", after / before, 1.05)


def _durations(epochs: list[EpochPublished], seconds: float) -> list[float]:
    begun = len(epochs)
    time.sleep(seconds)
    return [epoch.duration_s for epoch in epochs[begun:] if epoch.rows_in]


def _seconds(is_right: object) -> float:
    began = time.perf_counter()
    assert callable(is_right)
    assert is_right()
    return time.perf_counter() - began


def write_state(folder: Path, keys: int) -> None:
    """A checkpoint with the state of a running aggregate: users 0, 1, …, each with the total of its number."""
    store = LocalStore(folder)
    users = np.arange(keys, dtype=np.int64)
    orders = order_of(hash_columns([pa.array(users)]), GROUPS)
    by_order = np.argsort(orders)
    orders, users = orders[by_order], users[by_order]
    bounds = np.searchsorted(groups_of_orders(orders, GROUPS), np.linspace(0, GROUPS, FILES + 1))
    files = tuple(
        _write_file(store, number, orders[begin:end], users[begin:end])
        for number, (begin, end) in enumerate(pairwise(bounds))
    )
    manifest = _manifest(files)
    store.create(manifest_path(manifest.checkpoint), encode_manifest(manifest))


def _write_file(store: LocalStore, number: int, orders: np.ndarray, users: np.ndarray) -> StateFile:
    schema = file_schema(SCHEMA, with_deleted=False)
    path = f"state/totals/0000000001-g1-s{number}-a{number}-0.arrow"
    writer = ArrowFileWriter(store, path, schema, kind=STATE_KIND)
    for part, own in _parts(orders, users):
        columns = [pa.array(part), pa.array(own), pa.array(np.ones(len(own), np.int64)), pa.array(own)]
        writer.write(pa.RecordBatch.from_arrays(columns, schema=schema), groups_of_orders(part, GROUPS))
    info = writer.close()
    width = GROUPS // FILES
    ranges = (KeyGroupRange(number * width, (number + 1) * width),)
    return StateFile(path=path, rows=info.rows, bytes=info.bytes, checksum=info.checksum, ranges=ranges)


def _parts(orders: np.ndarray, users: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for begin in range(0, len(orders), BATCH_ROWS):
        yield orders[begin : begin + BATCH_ROWS], users[begin : begin + BATCH_ROWS]


def _manifest(files: tuple[StateFile, ...]) -> Manifest:
    columns = (("user", "int64"), ("n", "int64"), ("total", "int64"))
    operator = OperatorShape(kind="aggregate", stage="totals", output=columns, state={"": columns})
    edge = EdgeShape(producer="orders", consumer="totals", keys=("user",), columns=(("user", "int64"),))
    shape = PipelineShape(
        sources={"orders": (("user", "int64"),)},
        operators={"totals": operator},
        edges={"orders-to-totals": edge},
        sinks=(),
    )
    first = first_manifest(identity="bench", library="", max_parallelism=GROUPS, shape=shape, created_at="")
    return msgspec.structs.replace(first, checkpoint=CheckpointId(1), state={"totals": files})
