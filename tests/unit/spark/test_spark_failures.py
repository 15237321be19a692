"""What failures of Spark are called where Spark's own words name a symptom only."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JNetworkError

from penstock.engine.feed import SourceContended
from penstock.errors import StageFailed, StorageFailed
from penstock.spark.failures import explained, jvm_calls


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("Answer from Java side is empty")]
)
def test_a_jvm_that_is_gone_is_called_so(error: Exception) -> None:
    """E5, B12: whether a job, a plan or Structured Streaming finds out first."""
    assert isinstance(explained(error), StageFailed)
    with pytest.raises(StageFailed, match="JVM of the driver does not answer"), jvm_calls():
        raise error


def test_a_full_disk_under_structured_streaming_is_called_so() -> None:
    """E5."""
    error = explained(RuntimeError("[STREAM_FAILED] Query terminated: java.io.IOException: No space left on device"))
    assert isinstance(error, StorageFailed)
    assert "the disk is full" in str(error)


@pytest.mark.parametrize(
    "words",
    [
        "[STREAM_FAILED] Concurrent update to the log. Multiple streaming jobs detected for 2 SQLSTATE: XXKST",
        "Multiple streaming queries are concurrently using file:/tmp/checkpoint/source/sources/0. SQLSTATE: XXKST",
    ],
)
def test_two_streaming_queries_on_one_folder_are_called_so(words: str) -> None:
    """C9."""
    assert isinstance(explained(RuntimeError(words)), SourceContended)


def test_other_failures_keep_their_own_words() -> None:
    error = RuntimeError("[STREAM_FAILED] division by zero")
    assert explained(error) is error
    with pytest.raises(RuntimeError, match="division"), jvm_calls():
        raise error
