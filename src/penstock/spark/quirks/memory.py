"""Spark's Python workers live on between tasks, but the C library gives the memory of each task back to the kernel.

The arrays of the next task are then fresh pages, which the kernel has to find and clear: a quarter of the CPU time of a
subtask that aggregates 250,000 rows. So a worker keeps some of the memory that it has freed.

Seen in Spark 4.3.0, with the GNU C library. Other C libraries stay as they are.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h of the GNU C library numbers them
MAPPED_FROM_BYTES = 32 << 20
KEPT_BYTES = 64 << 20

_kept = False


def keep_memory() -> None:
    """Tells the C library once to keep `KEPT_BYTES` of freed memory, and to map no array below 32 MB by itself."""
    global _kept
    if _kept or not sys.platform.startswith("linux"):
        return
    _kept = True
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, MAPPED_FROM_BYTES)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
