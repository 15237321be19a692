"""The event loop of a worker process: one thread that runs a user's coroutines while the subtask reads and writes.

It lives as long as the process, so connections that user code keeps survive the epoch that opened them.
"""

from __future__ import annotations

import asyncio
import copy
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

AsyncRowFunction: TypeAlias = Callable[[dict[str, Any]], Awaitable[Any]]


class AsyncFunction:
    """A function for `map_async` with something to open first, such as a pool of connections::

        class Lookup(pen.AsyncFunction):
            async def open(self):
                self.session = aiohttp.ClientSession()

            async def __call__(self, row):
                async with self.session.get(f"http://prices/{row['item']}") as answer:
                    return {**row, "price": (await answer.json())["price"]}

    `open` is called once in each worker process, before the first row. What it keeps lives as long as the process.
    """

    async def open(self) -> None:
        """Called before the first row."""

    async def __call__(self, row: dict[str, Any]) -> Any:
        """The row that comes out."""
        raise NotImplementedError


class _Loop:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.opened: WeakKeyDictionary[object, AsyncRowFunction] = WeakKeyDictionary()
        threading.Thread(target=self.loop.run_forever, name="penstock-async", daemon=True).start()


_loops: dict[int, _Loop] = {}
"""By process: a forked worker has no thread of its parent."""


def event_loop() -> asyncio.AbstractEventLoop:
    return _here().loop


def opened(owner: object, function: AsyncRowFunction, timeout_s: float) -> AsyncRowFunction:
    """The function, opened when this process first uses it for its operator.

    Raises: what `open` raises; `TimeoutError` when it takes too long.
    """
    known = _here().opened
    if owner not in known:
        if isinstance(function, AsyncFunction):
            function = copy.copy(function)
            _open(function, timeout_s)
        known[owner] = function
    return known[owner]


def _open(function: AsyncFunction, timeout_s: float) -> None:
    async def run() -> None:
        try:
            await function.open()
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as raised:
            # It would end the thread of the loop, and threads that wait for it would wait for ever.
            raise RuntimeError(f"open() ended itself by {type(raised).__name__}") from raised

    opening = asyncio.run_coroutine_threadsafe(run(), event_loop())
    try:
        opening.result(timeout_s)
    except TimeoutError:
        if opening.done():
            raise  # its own
        opening.cancel()
        raise TimeoutError(f"open() did not end within {timeout_s:g} s") from None


def _here() -> _Loop:
    pid = os.getpid()
    if pid not in _loops:
        _loops.clear()
        _loops[pid] = _Loop()
    return _loops[pid]
