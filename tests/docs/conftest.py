"""One local Spark for the programs in the documents; the session of tests/spark, if that was first."""

from __future__ import annotations

import logging

import pytest
from pyspark.sql import SparkSession

import penstock


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """Not stopped here: tests/spark may still use it, and it ends with the process."""
    logging.getLogger("py4j").setLevel(logging.WARNING)
    return penstock.session(
        "local[2,4]",
        "penstock-tests",
        spark_driver_bindAddress="127.0.0.1",
        spark_sql_shuffle_partitions="2",
        spark_sql_warehouse_dir=str(tmp_path_factory.mktemp("warehouse")),
        spark_ui_enabled="false",
    )
