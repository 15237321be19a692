"""On real Spark: parallel edges with default names, text that is not UTF-8, a Spark checkpoint as folder, and a session
that is stopped under a query."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock as pen
from penstock.errors import NotACheckpoint, OperatorFailed
from tests.support.spark_streams import finish, numbered, paimon, rows_in, stream, write_files


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def test_rows_of_a_self_union_beside_another_union_reach_their_own_table(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "s", numbered(3_000, 2))
    write_files(tmp_path / "t", numbered(30, 1))
    x = pen.read(stream(spark, tmp_path / "s"), name="s").map_batches(same)
    y = pen.read(stream(spark, tmp_path / "t"), name="t").map_batches(same)
    finish(
        x.union(x).write(paimon(tmp_path, "shop.twice")),
        x.union(y).write(paimon(tmp_path, "shop.both")),
        checkpoint=tmp_path / "checkpoint",
    )
    twice = Counter(row["number"] for row in rows_in(tmp_path, "shop.twice"))
    both = Counter(row["number"] for row in rows_in(tmp_path, "shop.both"))
    assert (twice.total(), both.total()) == (12_000, 6_030)
    assert twice == Counter(dict.fromkeys(range(6_000), 2))
    assert both == Counter([*range(6_000), *range(30)])


# -- text that is not UTF-8 --------------------------------------------------------------------------------------------


def texts(spark: SparkSession, tmp_path: Path) -> pen.Stream:
    """Every tenth of 200 texts is one byte that is no UTF-8."""
    if not (tmp_path / "in").exists():
        write_files(tmp_path / "in", numbered(100, 2))
    frame = stream(spark, tmp_path / "in").selectExpr(
        "number", "CAST(IF(number % 10 = 3, X'ff', encode(CAST(number AS STRING), 'UTF-8')) AS STRING) AS text"
    )
    return pen.read(frame)


class Counting(pen.KeyedProcess):
    """Hands numbers on."""

    output = "number bigint"

    def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
        out.emit_many({"number": row["number"]} for row in rows)


def read_row(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"number": row["number"]}]


async def read_call(row: dict[str, Any]) -> dict[str, Any]:
    return {"number": row["number"]}


def read_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    batch["text"].to_pylist()
    return batch.select(["number"])


def readers(source: pen.Stream, **options: Any) -> dict[str, pen.Stream]:
    return {
        "flat": source.flat_map(read_row, "number bigint", name="flat", **options),
        "batches": source.map_batches(read_batch, "number bigint", name="batches", **options),
        "calls": source.map_async(read_call, "number bigint", name="calls", **options),
        "keyed": source.key_by("text").process(Counting, name="keyed", **options),
    }


def test_text_that_is_not_utf8_becomes_dead_letters_once(spark: SparkSession, tmp_path: Path) -> None:
    outputs = [
        made.write(paimon(tmp_path, f"shop.{name}"))
        for name, made in readers(texts(spark, tmp_path), on_error="dead_letter").items()
    ]
    letters = paimon(tmp_path, "shop.letters")
    finish(*outputs, checkpoint=tmp_path / "checkpoint", dead_letters=letters, max_error_rate=1.0)
    good = Counter(number for number in range(200) if number % 10 != 3)
    for name in ("flat", "batches", "calls", "keyed"):
        assert Counter(row["number"] for row in rows_in(tmp_path, f"shop.{name}")) == good, name
    found = rows_in(tmp_path, "shop.letters")
    records = Counter((letter["operator"], json.loads(letter["record"])["number"]) for letter in found)
    bad = [number for number in range(200) if number % 10 == 3]
    assert records == Counter((name, number) for name in ("flat", "batches", "calls", "keyed") for number in bad)
    assert {json.loads(letter["record"])["text"] for letter in found} == {r"\xff"}


@pytest.mark.parametrize("kind", ["flat", "keyed"])
def test_text_that_is_not_utf8_stops_the_query_as_what_it_is(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    made = readers(texts(spark, tmp_path))[kind]
    with pytest.raises(OperatorFailed, match="column 'text' holds bytes that are not UTF-8") as caught:
        finish(made.write(paimon(tmp_path)), checkpoint=tmp_path / "checkpoint")
    message = str(caught.value)
    assert r"\\xff" in message
    assert "subtask" in message
    assert "workers were lost" not in message


# -- folders -----------------------------------------------------------------------------------------------------------


def test_the_checkpoint_of_a_plain_spark_query_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in", numbered(10, 1))
    folder = tmp_path / "spark"
    frame = stream(spark, tmp_path / "in")
    plain = frame.writeStream.option("checkpointLocation", str(folder)).trigger(availableNow=True)
    plain.foreachBatch(lambda rows, _: rows.count()).start().awaitTermination()
    before = sorted(str(path) for path in folder.rglob("*"))
    with pytest.raises(NotACheckpoint, match="plain Spark query"):
        finish(pen.read(frame).map_batches(same).write(paimon(tmp_path)), checkpoint=folder)
    assert sorted(str(path) for path in folder.rglob("*")) == before
    assert not (tmp_path / "lake").exists()


# -- a session that is stopped, and a child that is forked -------------------------------------------------------------

PROGRAM = """
import os, sys, time
import penstock as pen
from pathlib import Path
from penstock.errors import StageFailed
from tests.support.spark_streams import numbered, paimon, stream, write_files

def slow(batch):
    time.sleep(0.05)
    return batch

if __name__ == "__main__":
    root, busy = Path(sys.argv[1]), sys.argv[2] == "busy"
    spark = pen.session("local[2]", "stopped", spark_driver_bindAddress="127.0.0.1", spark_ui_enabled="false")
    write_files(root / "in", numbered(2_000, 40 if busy else 1))
    output = pen.read(stream(spark, root / "in")).map_batches(slow if busy else (lambda b: b)).write(paimon(root))
    query = pen.start(output, checkpoint=root / "c", epoch="500 ms")
    while query.progress() is None or not (busy or query.waiting_for):
        assert query.is_active, query.exception()
        time.sleep(0.05)
    child = os.fork()
    if child == 0:
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert query.is_active, query.exception()
    spark.stop()
    try:
        ended = query.await_termination(60)
    except StageFailed as error:
        print(str(error))
    else:
        print("ended without an error" if ended else "goes on")
"""


@pytest.mark.drawn
@pytest.mark.parametrize("when", ["busy", "waiting"])
def test_a_session_that_is_stopped_under_a_query_is_called_so_and_a_forked_child_ends(
    tmp_path: Path, when: str
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), str(tmp_path), when],
        capture_output=True, text=True, timeout=240, check=False, env=_environment(),
    )  # fmt: skip
    assert "the Spark session was stopped while the query ran" in ended.stdout, ended.stdout + ended.stderr
    assert "PEN-033" in ended.stdout
    assert ended.returncode == 0


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
