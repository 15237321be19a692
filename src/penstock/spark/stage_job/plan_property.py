"""The plan of an epoch on its way to the workers, as a property of the job.

The work of a live stage is planned once and is the same in all epochs, so the plan has to travel beside it.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext, TaskContext

PLAN_PROPERTY = "penstock.plan"
PLAIN_PLAN_BYTES_MAX = 1 << 14
"""Spark sends a job's properties with each task and writes them to its event log: longer plans are compressed."""


@contextmanager
def sent_along(context: SparkContext, plan: bytes) -> Iterator[None]:
    """Jobs that this thread starts inside have the encoded plan with them."""
    context.setLocalProperty(PLAN_PROPERTY, as_property(plan))
    try:
        yield
    finally:
        context.setLocalProperty(PLAN_PROPERTY, None)  # type: ignore[arg-type]  # None takes it back


def received(context: TaskContext) -> bytes:
    """The encoded plan, in a task."""
    packed = context.getLocalProperty(PLAN_PROPERTY)
    assert packed is not None, "the job of a live stage is started with its plan"
    return from_property(packed)


def as_property(plan: bytes) -> str:
    """An encoded plan as the text of a property.

    >>> from_property(as_property(b"{}")), from_property(as_property(b"{" * 100_000)) == b"{" * 100_000
    (b'{}', True)
    """
    if len(plan) <= PLAIN_PLAN_BYTES_MAX:
        return plan.decode()
    return base64.b64encode(zlib.compress(plan, 1)).decode()


def from_property(text: str) -> bytes:
    """JSON begins with a brace, which base64 does not have."""
    return text.encode() if text.startswith("{") else zlib.decompress(base64.b64decode(text))
