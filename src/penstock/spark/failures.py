"""What some failures of Spark mean for a user, where Spark's own words name a symptom only."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JNetworkError

from penstock.engine.feed import SourceContended
from penstock.errors import StageFailed, storage_failed

NO_SPACE = "No space left on device"
# Of several error classes: for the offsets, for the commits, for the log of a file source.
CONTENDED = ("Multiple streaming jobs detected", "Multiple streaming queries are concurrently using")
_UNREACHABLE = (ConnectionError, Py4JNetworkError)


@contextmanager
def jvm_calls() -> Iterator[None]:
    """Around calls into the driver's JVM.

    Raises: `StageFailed` when there is no JVM any more.
    """
    try:
        yield
    except _UNREACHABLE as error:
        raise _jvm_gone() from error


def explained(error: BaseException) -> BaseException:
    """What to show of an error of Structured Streaming: its own words where they say enough."""
    if NO_SPACE in str(error):
        return storage_failed("the checkpoint's folder source/", OSError(errno.ENOSPC, NO_SPACE))
    if any(words in str(error) for words in CONTENDED):
        return SourceContended(str(error).partition("\n")[0])
    return _jvm_gone() if isinstance(error, _UNREACHABLE) else error


def _jvm_gone() -> StageFailed:
    return StageFailed(
        "the JVM of the driver does not answer any more",
        cause="it ended: killed from outside, or out of memory (spark.driver.memory)",
        next_step="look at the Spark log for its last words; nothing published was lost, start again to go on",
    )
