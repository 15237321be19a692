"""One number per run of the tests: what is drawn anew each time, so that in the end everything has had its turn."""

from __future__ import annotations

import os
import random
import zlib
from typing import TypeVar

T = TypeVar("T")

_RUN = os.environ.get("PENSTOCK_DRAW") or os.environ.get("PYTEST_XDIST_TESTRUNUID")
DRAW = int(_RUN) if _RUN and _RUN.isdecimal() else zlib.crc32(_RUN.encode()) if _RUN else random.randrange(10**9)
"""`PENSTOCK_DRAW=…` repeats it. Processes of one run have the same."""


def drawn(items: list[T], count: int) -> list[T]:
    """So many of them, in their order."""
    chosen = set(random.Random(DRAW).sample(range(len(items)), count))
    return [item for number, item in enumerate(items) if number in chosen]
