"""Structured Streaming reaches the checkpoint folder through Hadoop, not through Penstock's store.

Hadoop's file systems have schemes and connectors of their own. A connector that is missing, or of which parts are
missing, shows as a Java error about a class, after the query has begun. So the address is translated, and the
connector is looked for before anything is begun.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from penstock.errors import SparkSetupError
from penstock.spark.failures import jvm_calls

_SCHEMES = {"s3": "s3a"}
_MISSING_CLASS = re.compile(r"java\.lang\.(?:NoClassDefFoundError|ClassNotFoundException): [\w.$/]+")
_CONNECTORS = {
    "s3a": "org.apache.hadoop:hadoop-aws:{version}",
    "abfss": "org.apache.hadoop:hadoop-azure:{version}",
    "gs": "com.google.cloud.bigdataoss:gcs-connector",
}


def hadoop_url(url: str) -> str:
    """What Hadoop calls a folder.

    >>> hadoop_url("s3://bucket/totals"), hadoop_url("file:///totals")
    ('s3a://bucket/totals', 'file:///totals')
    """
    scheme = urlsplit(url).scheme
    return _SCHEMES.get(scheme, scheme) + url.removeprefix(scheme)


@contextmanager
def connector(url: str) -> Iterator[None]:
    """Wraps the call that makes Spark open the folder.

    Raises: `SparkSetupError` for a connector of which parts are missing.
    """
    try:
        yield
    except Exception as error:
        missing = _MISSING_CLASS.search(str(error))
        if missing is None or urlsplit(hadoop_url(url)).scheme not in _CONNECTORS:
            raise
        raise SparkSetupError(
            f"Spark cannot reach {hadoop_url(url)}: {missing[0]}",
            cause="the connector is on Spark's class path, but not all that it needs, or of another Hadoop version",
            next_step="name it in spark.jars.packages, in the version of Spark's Hadoop: that brings all it needs",
        ) from error


def require_connector(session: SparkSession, url: str) -> None:
    """Raises: `SparkSetupError` when Spark has no connector for the folder's scheme."""
    scheme = urlsplit(hadoop_url(url)).scheme
    if scheme not in _CONNECTORS:
        return
    jvm, java_session = session.sparkContext._jvm, session._jsparkSession  # noqa: SLF001 - no other way to ask
    assert jvm is not None
    with jvm_calls():
        settings = java_session.sessionState().newHadoopConf()
        try:
            jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, settings)
        except Py4JError as error:
            version = jvm.org.apache.hadoop.util.VersionInfo.getVersion()
            package = _CONNECTORS[scheme].format(version=version)
            raise SparkSetupError(
                f"Spark cannot reach {hadoop_url(url)}: it has no connector for {scheme}://",
                cause="Structured Streaming keeps the offsets of the sources in the checkpoint, through Hadoop's own"
                " connectors, and that for this object store is not on Spark's class path",
                next_step=f'add it, for example spark.jars.packages="{package}"; this Spark has Hadoop {version}',
                scheme=scheme,
            ) from error
