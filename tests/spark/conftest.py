"""One local Spark for all tests of this folder: two cores, four attempts per task, otherwise as users get it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import penstock

# JVMs of tests live for seconds: compiling well what runs a few times took half of their time. Children inherit it.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    logging.getLogger("py4j").setLevel(logging.WARNING)
    session = penstock.session(
        "local[2,4]",  # plain local[2] would allow one task failure only, so no retry could be seen
        "penstock-tests",
        spark_driver_bindAddress="127.0.0.1",
        spark_sql_shuffle_partitions="2",
        spark_sql_warehouse_dir=str(tmp_path_factory.mktemp("warehouse")),
        spark_ui_enabled="false",
    )
    yield session
    session.stop()
