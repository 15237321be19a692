"""Reading the state of 50 million keys from outside: all of it with Spark, and one key without."""

from __future__ import annotations

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

KEYS = 50_000_000
GROUPS = 128
FILES = 4
BATCH_ROWS = 1 << 20
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
