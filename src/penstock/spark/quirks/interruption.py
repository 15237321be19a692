"""Spark takes any exception in the handler of a micro-batch for a failure, unless it reads like its own interruption.

A handler whose micro-batch is not taken has to end without a commit. Spark then prints a JVM stack trace in the user's
terminal, except when the error text says that `stop` interrupted a call into the JVM. So the handler waits inside the
JVM, where Spark can interrupt it, and then raises an error with exactly that text.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import NoReturn

from py4j.protocol import Py4JError
from pyspark import SparkContext

INTERRUPTION_MS_MAX = 10_000
"""Between our call to stop the streaming query and Spark's interruption of its thread; longer on a busy machine."""


class Interrupted(Exception):
    """Ends a handler in the words by which Spark knows that its own `stop` ended it."""

    def __str__(self) -> str:
        return "py4j.protocol.Py4JJavaError: An error occurred while calling sleep: java.lang.InterruptedException"


def end_interrupted(context: SparkContext) -> NoReturn:
    """Waits in the JVM until Spark interrupts this handler, whose streaming query is being stopped. Then ends it."""
    jvm = context._jvm  # noqa: SLF001 - only inside the JVM can the thread be interrupted
    assert jvm is not None
    with suppress(Py4JError):
        jvm.java.lang.Thread.sleep(INTERRUPTION_MS_MAX)
    raise Interrupted from None


def _worth_logging(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], Interrupted))


logging.getLogger("py4j.clientserver").addFilter(_worth_logging)
