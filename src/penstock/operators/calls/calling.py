"""Runs the calls of a `MapAsync`, up to a number at once.

The event loop's thread runs coroutines. It has some rows in reserve, so that the next call begins as soon as one ends.
A queue brings each ended call to the subtask's thread. All other bookkeeping belongs to the subtask's thread.
"""

from __future__ import annotations

import asyncio
import math
import queue
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from penstock.operators.calls.event_loop import AsyncRowFunction, event_loop
from penstock.operators.values.convert import check_row
from penstock.operators.values.copies import row_copier

BACKOFF_S = 0.1
BACKOFF_S_MAX = 10.0
"""Before retry k a call waits a random time up to `BACKOFF_S` * 2**k: calls that failed together are repeated at
different times."""
GATHER_S = 0.005
"""How long calls that ended may wait for others, to be handled together."""


Row: TypeAlias = "dict[str, Any]"
GivenRow: TypeAlias = "Row | Exception"
"""Why Python cannot hold a row."""


class Ended(NamedTuple):
    """One call that ended: the row that came out, or the exception."""

    slice: int
    row: int
    result: Row | Exception
    elapsed_s: float


class Calls:
    """Calls on the event loop of this process, and the queue that brings them back."""

    def __init__(
        self,
        function: AsyncRowFunction,
        schemas: tuple[pa.Schema, pa.Schema],
        *,
        concurrency: int,
        timeout_s: float,
        retries: int,
        clock: Callable[[], float],
    ) -> None:
        """`schemas` are those of the rows that go in and come out."""
        self._function, self._concurrency = function, concurrency
        self._timeout_s, self._retries, self._clock = timeout_s, retries, clock
        self._copy_input, self._copy_output = map(row_copier, schemas)
        self._names = frozenset(schemas[1].names)
        self._loop = event_loop()
        self._reserve: deque[tuple[int, int, GivenRow]] = deque()
        self._begin_until = math.inf
        self._tasks: set[asyncio.Task[None]] = set()
        # No SimpleQueue: on a busy machine, its `get` with a short timeout was seen to wait for ever (CPython 3.11).
        self._ended: queue.Queue[Ended] = queue.Queue()
        self._abandoned = False

    def begin(self, number: int, rows: Sequence[GivenRow], until: float) -> None:
        """Queues a call for each row of a slice. Calls that have not begun by `until` never begin."""
        self._loop.call_soon_threadsafe(self._add, number, rows, until)

    def ended(self, wait_s: float, enough: int) -> list[Ended]:
        """Calls that ended since the last time. Waits for one up to a limit, and a little longer for `enough` of
        them."""
        found: list[Ended] = []
        with suppress(queue.Empty):
            found.append(self._ended.get(timeout=None if wait_s == math.inf else wait_s))
            until = self._clock() + min(GATHER_S, wait_s)
            while len(found) < enough:
                found.append(self._ended.get(timeout=max(0.0, until - self._clock())))
            while True:
                found.append(self._ended.get_nowait())
        return found

    def abandon(self) -> None:
        """Cancels what still runs, without waiting for it."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _add(self, number: int, rows: Sequence[GivenRow], until: float) -> None:
        self._reserve += ((number, index, row) for index, row in enumerate(rows))
        self._begin_until = until
        self._refill()

    def _refill(self) -> None:
        while self._reserve and len(self._tasks) < self._concurrency and self._clock() < self._begin_until:
            task = self._loop.create_task(self._run(*self._reserve.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._refill()

    def _cancel(self) -> None:
        self._abandoned = True
        self._reserve.clear()
        for task in self._tasks:
            task.cancel()

    async def _run(self, number: int, index: int, row: GivenRow) -> None:
        started = self._clock()
        result: Row | Exception
        try:
            if isinstance(row, Exception):
                raise row
            result = self._taken(await self._call(row))
        except Exception as raised:  # noqa: BLE001 - user code may raise anything
            result = raised
        except BaseException as raised:  # otherwise the row would never be reported
            if self._abandoned:
                raise
            result = RuntimeError(f"the call ended itself by {type(raised).__name__}")
        self._ended.put(Ended(number, index, result, self._clock() - started))

    def _taken(self, result: object) -> Row:
        """A copy, made before another call can change objects that both share. Raises: `BadOutput`."""
        check_row(result, self._names)
        assert isinstance(result, Mapping)
        return self._copy_output(result)

    async def _call(self, row: Row) -> object:
        attempt = 0
        while True:
            limit = asyncio.timeout(self._timeout_s)
            try:
                async with limit:
                    # A copy: a retry must not see what an earlier try did to its row.
                    return await self._function(self._copy_input(row))
            except (Exception, asyncio.CancelledError) as error:
                if self._abandoned:
                    raise
                # We did not cancel the call: something that it awaited was cancelled.
                if attempt == self._retries:
                    if limit.expired():
                        raise TimeoutError(f"no answer within {self._timeout_s:g} s") from None
                    raise error from None
            await asyncio.sleep(random.uniform(0, min(BACKOFF_S * 2**attempt, BACKOFF_S_MAX)))
            attempt += 1
