"""The queries that run in this process, for whoever has to end them: a test, a notebook, the end of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from penstock.engine.query import Query

_started: WeakSet[Query] = WeakSet()


def active_queries() -> list[Query]:
    """Queries that were started in this process and have not ended."""
    return [query for query in list(_started) if query.is_active]


def remember(query: Query) -> None:
    _started.add(query)
