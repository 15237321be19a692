"""How Spark is told where the checkpoint is, and what a user reads when it cannot get there."""

from __future__ import annotations

import pytest

from penstock.errors import SparkSetupError
from penstock.spark.quirks.hadoop import connector, hadoop_url


@pytest.mark.parametrize(
    ("ours", "hadoops"),
    [
        ("s3://bucket/a", "s3a://bucket/a"),
        ("gs://bucket/a", "gs://bucket/a"),
        ("abfss://c@a.dfs.core.windows.net/a", "abfss://c@a.dfs.core.windows.net/a"),
        ("file:///a", "file:///a"),
    ],
)
def test_hadoop_has_a_name_of_its_own_for_s3(ours: str, hadoops: str) -> None:
    assert hadoop_url(ours) == hadoops


def test_a_connector_with_parts_missing_is_named_as_the_cause() -> None:
    words = "Caused by: java.lang.NoClassDefFoundError: software/amazon/s3/ObjectClient\n\tat org.apache"
    wanted = r"software/amazon/s3/ObjectClient(?s:.)*spark\.jars\.packages"
    with pytest.raises(SparkSetupError, match=wanted), connector("s3://bucket/a"):
        raise RuntimeError(words)


@pytest.mark.parametrize("url", ["s3://bucket/a", "file:///a"])
def test_other_failures_stay_as_they_are(url: str) -> None:
    words = "java.lang.NoClassDefFoundError: some/Source" if url.startswith("file") else "something else"
    with pytest.raises(RuntimeError, match=words), connector(url):
        raise RuntimeError(words)
