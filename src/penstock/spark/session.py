"""A SparkSession with the settings that suit Penstock; any other session works too."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.errors import SparkSetupError
from penstock.plain import plain_errors
from penstock.spark.data_source import register
from penstock.spark.installed import require_classic, require_pyspark
from penstock.spark.quirks.localretries import with_retries

MIN_JAVA = 17


def spark_conf() -> dict[str, str]:
    """Settings to copy into your own session; each is a matter of speed or fairness, none of correctness.

    >>> spark_conf()["spark.sql.session.timeZone"]
    'UTC'
    """
    return {
        # Python workers answer over a socket file: TCP on loopback costs ~40 ms per wave of tasks.
        "spark.python.unix.domain.socket.enabled": "true",
        # Each query has a scheduler pool of its own, which counts in this mode alone.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
    }


@plain_errors
def session(master: str | None = None, app_name: str = "penstock", **conf: str) -> SparkSession:
    """Makes or gets a SparkSession; further settings as keywords with ``_`` for ``.``, or in your own builder.

    Without `master` it is the one that spark-submit was given, else ``local[*]``.

    Raises: `SparkSetupError` when no Java 17 or newer is found, PySpark is too old, or Spark Connect answers.
    """
    require_pyspark()
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    if master is None and not submitted():
        master = "local[*]"
    if master is not None:
        builder = builder.master(with_retries(master))
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for key, value in {**spark_conf(), **{key.replace("_", "."): value for key, value in conf.items()}}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    require_classic(spark)
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def submitted() -> bool:
    """Whether spark-submit has started this program: the JVM was there first, and knows the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def require_java() -> str:
    """What the Java that Spark will use says of itself.

    Raises: `SparkSetupError` unless it is one that Spark can use.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    advice = (
        "install a Java 17+ runtime (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install "
        "openjdk@17; Fedora: dnf install java-17-openjdk-headless) and point JAVA_HOME to it"
    )
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME={home} has no bin/java" if home else "no java on PATH and JAVA_HOME is not set"
        raise SparkSetupError(where, cause="Spark needs a Java runtime", next_step=advice)
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    if match is None or int(match[1]) < MIN_JAVA:
        first = output.splitlines()[0] if output else "no answer"
        raise SparkSetupError(f"{java} says: {first}", cause=f"Spark needs Java {MIN_JAVA} or newer", next_step=advice)
    return f"{java}, {output.splitlines()[0]}"
