"""The ground all tests of this folder stand on."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def name_interpreter(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"python": pa.array([sys.executable] * batch.num_rows)})


def test_workers_run_the_python_of_the_driver_and_can_import_test_modules(spark: SparkSession) -> None:
    rows = spark.range(4, numPartitions=2).mapInArrow(name_interpreter, "python string").collect()
    assert {row.python for row in rows} == {sys.executable}


def test_sessions_keep_time_in_utc_and_talk_to_workers_over_socket_files(spark: SparkSession) -> None:
    settings = ("spark.sql.session.timeZone", "spark.python.unix.domain.socket.enabled")
    assert [spark.conf.get(name) for name in settings] == ["UTC", "true"]
