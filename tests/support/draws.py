"""One number per run of the tests: what is drawn anew each time, so that in the end everything has had its turn."""

from __future__ import annotations

import os
import random
import zlib

_RUN = os.environ.get("PENSTOCK_DRAW") or os.environ.get("PYTEST_XDIST_TESTRUNUID")
DRAW = int(_RUN) if _RUN and _RUN.isdecimal() else zlib.crc32(_RUN.encode()) if _RUN else random.randrange(10**9)
"""`PENSTOCK_DRAW=…` repeats it. Processes of one run have the same."""
ONE_OF = 3


def is_drawn(test: str) -> bool:
    """Whether a test that is marked as `drawn` runs this time; whichever others there are."""
    return random.Random(f"{DRAW} {test}").randrange(ONE_OF) == 0
