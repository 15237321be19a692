"""Several queries in one application share its slots fairly: each has a scheduler pool of its own.

A pool counts only where the application was started with ``spark.scheduler.mode=FAIR``, as `pen.session` does. There
all pools get the same share. A program that sets ``spark.scheduler.pool`` before it starts a query chooses the pool
itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext

from penstock.store.base import Store

POOL = "spark.scheduler.pool"


def pool_of(context: SparkContext, store: Store) -> str:
    """The pool of a query, asked in the thread that starts it."""
    return context.getLocalProperty(POOL) or f"penstock {store.url}"


@contextmanager
def in_pool(context: SparkContext, pool: str) -> Iterator[None]:
    """Jobs that this thread starts inside, and streaming queries that it starts, are in the pool."""
    before = context.getLocalProperty(POOL)
    context.setLocalProperty(POOL, pool)
    try:
        yield
    finally:
        context.setLocalProperty(POOL, before)  # type: ignore[arg-type]  # None takes it back
