"""One local Spark for all tests of this folder: two cores, four attempts per task, as Penstock sets it up."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import penstock

MASTER = "local[2,4]"  # plain local[2] would allow one task failure only, so no retry could be seen


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    logging.getLogger("py4j").setLevel(logging.WARNING)
    make = getattr(penstock, "session", None)
    session = make(MASTER) if make else _plain_session(str(tmp_path_factory.mktemp("warehouse")))
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def _plain_session(warehouse: str) -> SparkSession:
    """The same settings without Penstock."""
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": warehouse,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(MASTER).appName("penstock-tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
