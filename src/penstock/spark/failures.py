"""What some failures of Spark mean for a user, where Spark's own words name a symptom only."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext

from penstock.engine.feed import SourceCancelled, SourceContended
from penstock.errors import PenstockError, SourceLostRecords, SparkSetupError, StageFailed, storage_failed
from penstock.spark.quirks.stopped import is_stopped

NO_SPACE = "No space left on device"
# Of several error classes: for the offsets, for the commits, for the log of a file source.
CONTENDED = ("Multiple streaming jobs detected", "Multiple streaming queries are concurrently using")
CANCELLED = "SPARK_JOB_CANCELLED"
_UNREACHABLE = (ConnectionError, Py4JNetworkError)
# The general text of Spark's error class KAFKA_DATA_LOSS, which is not always named, then the reason with partition and
# offsets.
_KAFKA_LOSS = re.compile(
    r"data may have been lost because they are not available in Kafka.*?Reason:\s*(.*?)\s*(?:SQLSTATE|\n\s*at |\Z)",
    re.DOTALL,
)
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


@contextmanager
def jvm_calls(context: SparkContext | None = None) -> Iterator[None]:
    """Around calls into the driver's JVM.

    Raises: `StageFailed` when there is no JVM any more, or the Spark session was stopped.
    """
    try:
        yield
    except PenstockError:
        raise
    except _UNREACHABLE as error:
        raise _jvm_gone() from error
    except Exception as error:
        if context is not None and is_stopped(context):
            raise session_stopped() from error
        raise


def is_cancellation(error: BaseException) -> bool:
    """Whether a job ended because it was cancelled, not because something was lost."""
    return CANCELLED in str(error)


def session_stopped() -> StageFailed:
    return StageFailed(
        "the Spark session was stopped while the query ran",
        cause="spark.stop() was called before query.stop(), or Spark gave up (its log says why)",
        next_step="call query.stop() first; nothing published was lost, start again in a new session to go on",
    )


def brief(error: BaseException) -> str:
    """The line that matters of a Spark error: the Python exception if there is one, else why the last task failed.

    >>> brief(Exception("An error occurred while calling o1.x.\\n: Job aborted, most recent failure: Lost task 0.3"))
    'Lost task 0.3'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    python = [
        line for line in lines if line.split(":")[0].endswith(("Error", "Exception")) and "org.apache" not in line
    ]
    spark = [line.removeprefix(": ") for line in lines if not line.startswith("An error occurred while calling")]
    line = python[-1] if python else spark[0] if spark else type(error).__name__
    return line.rpartition("most recent failure: ")[2][:500]


def diagnosed(error: BaseException) -> PenstockError | None:
    """The failure that another attempt cannot repair, where Spark's words tell it; None for all others."""
    text = str(error)
    if lost := _KAFKA_LOSS.search(text):
        return SourceLostRecords(
            " ".join(lost[1].split()),
            cause="Kafka's retention deleted records before they were read, or the topic was deleted and made anew",
            next_step='read on without them with .option("failOnDataLoss", "false"), which counts them in events of'
            " the kind SourceLost; and give the topic a longer retention.ms",
        )
    if missing := _NO_MODULE.search(text):
        package = missing[1].partition(".")[0]
        return SparkSetupError(
            f"Python workers find no module named {missing[1]!r}",
            cause="the driver has it, and the Python of the executors has not",
            next_step=f"install the package there ({package}), send it along with --py-files or --archives, or let"
            " PYSPARK_PYTHON name a Python that has it; penstock doctor tells what executors have",
            module=missing[1],
        )
    return None


def explained(error: BaseException, context: SparkContext | None = None) -> BaseException:
    """What to show of an error of Structured Streaming: its own words where they say enough."""
    if context is not None and is_stopped(context):
        return session_stopped()
    if NO_SPACE in str(error):
        return storage_failed("the checkpoint's folder source/", OSError(errno.ENOSPC, NO_SPACE))
    if any(words in str(error) for words in CONTENDED):
        return SourceContended(str(error).partition("\n")[0])
    if is_cancellation(error):
        return SourceCancelled(str(error).partition("\n")[0])
    if isinstance(error, _UNREACHABLE):
        return _jvm_gone()
    return diagnosed(error) or error


def _jvm_gone() -> StageFailed:
    return StageFailed(
        "the JVM of the driver does not answer any more",
        cause="it ended: killed from outside, or out of memory (spark.driver.memory)",
        next_step="look at the Spark log for its last words; nothing published was lost, start again to go on",
    )
