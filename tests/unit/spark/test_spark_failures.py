"""What failures of Spark are called where Spark's own words name a symptom only."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JNetworkError

from penstock.engine.feed import SourceContended
from penstock.errors import SourceLostRecords, SparkSetupError, StageFailed, StorageFailed
from penstock.spark.failures import diagnosed, explained, jvm_calls


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


KAFKA_LOSS = """An error occurred while calling o74.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most recent \
failure: Lost task 0.3 in stage 1.0 (TID 3) (host executor driver): org.apache.spark.sql.kafka010.KafkaException: \
[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may have been lost because they are not available in Kafka any \
more;
either the data was aged out by Kafka or the topic may have been deleted before all the data in the
topic was processed.
If you don't want your streaming query to fail on such cases, set the source option failOnDataLoss to false.
Reason:
Could not read records in offset [120, 480) for topic partition orders-3
with consumer group spark-kafka-source. SQLSTATE: 22000
\tat org.apache.spark.sql.kafka010.KafkaExceptions$.couldNotReadOffsetRange(KafkaExceptions.scala:200)"""


KAFKA_LOSS_OF_STREAM = (
    "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
    + KAFKA_LOSS.partition("OFFSET_RANGE] ")[2].partition("\tat ")[0]
)


@pytest.mark.parametrize("text", [KAFKA_LOSS, KAFKA_LOSS_OF_STREAM])
def test_records_that_kafka_has_deleted_are_told_with_partition_and_offsets(text: str) -> None:
    """Whether a job or Structured Streaming finds out; nothing is tried again."""
    error = explained(RuntimeError(text))
    assert isinstance(error, SourceLostRecords)
    assert "offset [120, 480) for topic partition orders-3" in str(error)
    assert "failOnDataLoss" in error.next_step
    assert "KafkaExceptions.scala" not in str(error)


def test_a_module_that_workers_lack_is_named() -> None:
    text = (
        "Traceback (most recent call last):\n  ...\nModuleNotFoundError: No module named 'geo.shapes'\n\tat org.apache"
    )
    error = diagnosed(RuntimeError(text))
    assert isinstance(error, SparkSetupError)
    assert "'geo.shapes'" in error.seen
    assert "install the package there (geo)" in error.next_step


def test_what_another_attempt_may_repair_is_not_called_final() -> None:
    assert diagnosed(RuntimeError("Lost task 0.3 in stage 1.0: ExecutorLostFailure")) is None
