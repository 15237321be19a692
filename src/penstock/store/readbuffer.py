"""The one reusable buffer that a reader reads compressed batches into.

It is outside of every budget, made when first needed, grows to the largest batch with its schema, and is never in
use twice: a second use at the same time would overwrite bytes that are still being decoded, so it fails loudly.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt


class ReadBuffer:
    """Lends its memory to one user at a time."""

    def __init__(self) -> None:
        self._memory: npt.NDArray[np.uint8] | None = None
        self._lent = threading.Lock()
        self._closed = False

    @property
    def bytes(self) -> int:
        """What it holds now."""
        return 0 if self._memory is None else self._memory.nbytes

    @contextmanager
    def use(self, size_bytes: int) -> Iterator[memoryview]:
        """Lends `size_bytes` until the end of the ``with`` block; nothing may refer to them afterwards."""
        # Explicit, because `python -O` drops assert statements, and this must not go unnoticed.
        if self._closed:
            raise AssertionError("the read buffer is closed")
        if not self._lent.acquire(blocking=False):
            raise AssertionError("the read buffer is in use already")
        try:
            if self._memory is None or self._memory.nbytes < size_bytes:
                self._memory = None  # freed first: the old and the new one are never held together
                self._memory = np.empty(size_bytes, np.uint8)
            yield self._memory.data[:size_bytes]
        finally:
            self._lent.release()

    def close(self) -> None:
        self._closed = True
        self._memory = None
