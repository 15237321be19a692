"""One Spark for both sides of a comparison, with the settings that help both."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

import penstock

ROOT = Path(__file__).resolve().parents[1]


def make_session(cores: int = 2) -> SparkSession:
    """A local session; call it before anything else starts a JVM in this process."""
    # Workers import the functions of this package by name.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    return penstock.session(
        f"local[{cores},4]",
        "penstock-benchmarks",
        # In-memory state of two million keys must not measure the garbage collector.
        spark_driver_memory="6g",
        spark_sql_adaptive_enabled="false",
        spark_ui_enabled="false",
    )


@contextmanager
def with_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Sets session options for the time of a run, and puts back what was there."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
