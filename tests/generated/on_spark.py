"""Generated pipelines on Spark: one session, one pipeline after the other, parquet files in, rows kept in the driver.

A query runs over the first files, stops, and a second one goes on over all of them at another parallelism.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import penstock as pen
from penstock.testing.tables import Memory, memory_table
from tests.generated.kinds import schema_of
from tests.generated.nodes import Node
from tests.generated.oracle import Oracle
from tests.generated.program import Program, draw_program
from tests.generated.sources import Source

TIMEOUT_S = 120
_runs = itertools.count()


def judged_on_spark(seeds: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Seeds and what differs, in a session of its own."""
    spark = pen.session(
        "local[2,4]", "penstock-generated", spark_ui_enabled="false", spark_sql_shuffle_partitions="2",
        spark_driver_bindAddress="127.0.0.1",
    )  # fmt: skip
    oracle = Oracle()
    for seed in seeds:
        yield seed, difference_on_spark(spark, oracle, draw_program(seed, on_spark=True))
    spark.stop()


def difference_on_spark(spark: SparkSession, oracle: Oracle, program: Program) -> str:
    try:
        with tempfile.TemporaryDirectory(prefix="penstock-generated-") as folder:
            emitted = run_on_spark(spark, program, Path(folder))
        found = oracle.differences(program, emitted)
    except Exception:  # noqa: BLE001 - whatever a pipeline ends with is a difference
        found = {-1: traceback.format_exc()}
    return "\n".join([str(program), *(f"t{number}:\n{text}" for number, text in found.items())]) if found else ""


def run_on_spark(spark: SparkSession, program: Program, folder: Path) -> dict[int, pa.Table]:
    """What the pipeline wrote, by the number of the output."""
    half = len(program.input.batches) // 2
    tables = {node.number: f"generated-{next(_runs)}" for node in program.outputs}
    second = program.schedule.steps[-1].parallelism or program.schedule.parallelism
    if half:
        _write(program, folder, range(half))
        _finish(spark, program, folder, tables, program.schedule.parallelism)
    _write(program, folder, range(half, len(program.input.batches)))
    ends = "end" if program.schedule.flush else None
    _finish(spark, program, folder, tables, min(second, program.schedule.max_parallelism), flush=ends)
    return {
        node.number: memory_table(tables[node.number]).rows().select(list(node.columns)).cast(schema_of(node.columns))
        for node in program.outputs
    }


def _finish(
    spark: SparkSession, program: Program, folder: Path, tables: dict[int, str], parallelism: int, **options: Any
) -> None:
    streams = program.streams(lambda node: _read(spark, node, folder))
    outputs = [
        streams[node.number].write(
            Memory(tables[node.number]), name=None if node.number % 2 else f"o{node.number}"
        )
        for node in program.outputs
    ]  # fmt: skip
    barrier = program.schedule.barrier
    query = pen.start(
        *outputs,
        checkpoint=folder / "checkpoint",
        parallelism=parallelism,
        max_parallelism=program.schedule.max_parallelism,
        epoch="2 s" if barrier is None else "50 ms",
        prefetch_bytes=program.schedule.prefetch_bytes,
        trigger="available_now",
        **options,
    )
    if not query.await_termination(TIMEOUT_S):
        query.stop()
        raise TimeoutError("the query hangs")


def _read(spark: SparkSession, node: Node, folder: Path) -> pen.Stream:
    op = node.op
    assert isinstance(op, Source)
    reader = spark.readStream.schema(_ddl(spark, node)).option("maxFilesPerTrigger", str(op.parts))
    return pen.read(reader.parquet(str(folder / f"in{op.index}")), name=op.name, **op.event_time())


def _ddl(spark: SparkSession, node: Node) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema_of(node.columns))


def _write(program: Program, folder: Path, numbers: Iterable[int]) -> None:
    """A file for each partition of each micro-batch; Spark takes files in the order of their time."""
    for node in program.sources:
        op = node.op
        assert isinstance(op, Source)
        target = folder / f"in{op.index}"
        target.mkdir(exist_ok=True)
        for number in numbers:
            rows = program.input.batches[number].get(op.index, [])
            for part in range(op.parts):
                mine = [row for row in rows if row["part"] == part]
                path = target / f"{number:03d}-{part}.parquet"
                pq.write_table(pa.Table.from_pylist(mine, schema=schema_of(node.columns)), path)
                os.utime(path, (number * 10 + part + 1, number * 10 + part + 1))
