"""What tests leave running: it is stopped, so that one failure stays one failure."""

from __future__ import annotations

from contextlib import suppress

import pytest

from penstock.engine.active import active_queries
from penstock.errors import PenstockError

STOP_S = 60
"""For a query that a test left running."""
FAILED = pytest.StashKey[bool]()
"""Set on a test whose body failed: what it left running is no second failure then."""


def stop_leftovers() -> list[str]:
    """Stops queries that still run; their names."""
    left = active_queries()
    for query in left:
        with suppress(PenstockError):
            query.stop(timeout=STOP_S)
    return [query.name for query in left]
