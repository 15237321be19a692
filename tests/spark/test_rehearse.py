"""A rehearsal beside a running query, on real Spark with a real table, by the API and by the command."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import penstock as pen
from penstock.cli.main import main
from tests.support.spark_streams import (
    Slow,
    assert_numbered_exactly_once,
    deep,
    numbered,
    paimon,
    rows_in,
    start_until,
    stream,
    write_files,
)

JOB = """
from pathlib import Path

import penstock as pen
from tests.spark.test_rehearse import program


def build(spark):
    return {{"outputs": program(spark, Path({folder!r}), shifted={shifted}), "parallelism": 2}}
"""


def program(spark: SparkSession, tmp_path: Path, *, shifted: bool = False) -> pen.Output:
    slow = pen.read(stream(spark, tmp_path / "in")).key_by("user").process(Slow, name="slow")
    return (slow.map_batches(_shift, name="shift") if shifted else slow).write(paimon(tmp_path), name="out")


def _shift(batch: pa.RecordBatch) -> pa.RecordBatch:
    place = batch.schema.get_field_index("nth")
    odd = pc.equal(pc.bit_wise_and(batch.column("number"), 1), 1)
    return batch.set_column(place, batch.schema.field(place), pc.add(batch.column("nth"), odd.cast(pa.int64())))


def test_a_rehearsal_beside_a_running_query_tells_what_would_differ_and_harms_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F8: the old and the new program get the same rows: those in flight, and those that came since."""
    write_files(tmp_path / "in", numbered(1200, 3))
    here = tmp_path / "checkpoint"
    query = start_until(program(spark, tmp_path), deep, checkpoint=here, parallelism=2, retain=1)
    for name, shifted in (("old", False), ("new", True)):
        (tmp_path / f"{name}.py").write_text(JOB.format(folder=str(tmp_path), shifted=shifted))
    monkeypatch.setattr("os.nice", lambda _: 0)  # the tests after this one want their share
    command = f"rehearse {tmp_path}/new.py:build --checkpoint {here} --epochs 3 --against {tmp_path}/old.py:build"
    told = CliRunner().invoke(main, [*command.split(), "--epoch", "200 ms", "--key", "out=number", "--json"])
    assert told.exit_code == 0, told.output
    report = json.loads(told.output)
    (found,) = report["differences"]
    assert report["not_compared"] is None
    assert found["columns"] == {"nth": found["changed"]}
    assert min(found["changed"], found["same"]) > 0
    assert (found["only_new"], found["only_old"]) == (0, 0)
    assert all(example["new"]["nth"] == example["old"]["nth"] + 1 for example in found["examples"])
    assert report["rows_out"] == {"out": found["changed"] + found["same"]}
    assert report["original"]["epochs"] > 0
    assert query.await_termination(120)
    assert_numbered_exactly_once(rows_in(tmp_path), 3600)
    assert not [path.name for path in tmp_path.iterdir() if "rehearsal" in path.name]
