"""The queries that run in this process, so that a test, a notebook or the end of a program can end them."""

from __future__ import annotations

import atexit
import os
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from penstock.engine.query import Query

_forks_watched: list[bool] = []
_started: WeakSet[Query] = WeakSet()


def active_queries() -> list[Query]:
    """Queries that were started in this process and have not ended."""
    return [query for query in list(_started) if query.is_active]


def remember(query: Query) -> None:
    _started.add(query)
    if not _forks_watched:
        _forks_watched.append(True)
        os.register_at_fork(after_in_child=_forget_exit_handlers)


def _forget_exit_handlers() -> None:
    """A child that was forked while a query runs ends at once.

    It has none of the threads that handlers of its parent wait for: the query's own, and that of polars, which comes
    with Paimon. Children of `multiprocessing` run no such handlers either.
    """
    if active_queries():
        atexit._clear()  # noqa: SLF001 - there is no public way, and polars keeps its handler to itself
