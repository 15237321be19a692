"""Pulls items ahead of a consumer, in one thread, bounded by bytes.

The budget counts items that wait for the consumer. Memory for making an item does not count, and an item larger than
the whole budget passes alone. So the budget can never block the producer for ever.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """Pulls items from a generator: in the caller's thread until `start`, in a thread of its own from then on.

    `get` and `close` belong to one thread, the consumer's.
    """

    def __init__(self, items: Generator[T, None, None], size_of: Callable[[T], int], budget_bytes: int) -> None:
        self._items, self._size_of, self._budget_bytes = items, size_of, budget_bytes
        self._changed = threading.Condition()
        self._waiting: deque[tuple[T, int]] = deque()
        self._waiting_bytes = 0
        self._ended = self._closed = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def started(self) -> bool:
        return self._thread is not None

    @property
    def waiting_bytes(self) -> int:
        """What was read ahead and waits for the consumer."""
        return self._waiting_bytes

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-prefetch", daemon=True)
            self._thread.start()

    def get(self) -> T | None:
        """The next item, None at the end. Raises: what the generator raised, in its place among the items."""
        assert not self._closed, "the reader is closed"
        if self._thread is None:
            self._pull_one()
        with self._changed:
            while not self._waiting and not self._ended:
                self._changed.wait()
            if self._waiting:
                item, size = self._waiting.popleft()
                self._waiting_bytes -= size
                self._changed.notify_all()
                return item
        # A generator that raised is finished and would look like a normal end: the error is remembered instead.
        if self._error is not None:
            raise self._error
        return None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._items.close()
        self._waiting.clear()
        self._waiting_bytes = 0

    def _run(self) -> None:
        while self._pull_one():
            pass

    def _pull_one(self) -> bool:
        """Moves one item from the generator to those waiting; False when there is nothing more to do."""
        if self._ended:
            return False
        try:
            item = next(self._items)
            size = self._size_of(item)
        except BaseException as error:  # noqa: BLE001 - whatever it is, `get` raises it in the consumer
            with self._changed:
                self._error = None if isinstance(error, StopIteration) else error
                self._ended = True
                self._changed.notify_all()
            return False
        with self._changed:
            while self._waiting and self._waiting_bytes + size > self._budget_bytes and not self._closed:
                self._changed.wait()
            self._waiting.append((item, size))
            self._waiting_bytes += size
            self._changed.notify_all()
            return not self._closed
