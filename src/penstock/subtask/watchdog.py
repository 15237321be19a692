"""A thread that notices when a subtask hangs, and reads where it is.

A function that does not return cannot be interrupted, but its stack can be read. The subtask reads its clock before and
after each slice, so reading the clock shows that it gets on. Waiting for rows that Spark has to deliver is not the
subtask's fault, and not judged here: the driver sees what Spark does.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Self, TypeVar

from penstock.errors import PenstockError
from penstock.graph.stages import Stage
from penstock.operators.base import Operator
from penstock.protocol.hung import Stuck, encode_stuck
from penstock.protocol.layout import STUCK, AttemptId, HungSign
from penstock.protocol.plan import StagePlan
from penstock.store.base import AlreadyExists, Store

T = TypeVar("T")

FRAMES_MAX = 40
VALUES_MAX, VALUE_CHARS_MAX = 8, 200
LOOKS = 8
"""How many times within the limit it looks."""
WRITING_S_MAX = 1.0
"""How long a subtask that ends waits for a sign that is being written."""
_OURS = "penstock"
_EVENT_LOOP = "penstock-async"


@dataclass(slots=True)
class Signs:
    """Callbacks: `stuck` once, `alive` each time that a slow subtask was found to get on."""

    stuck: Callable[[Place, float], None]
    alive: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a thread is."""

    operator: int | None
    """Which of the stage's."""
    function: str | None
    values: dict[str, str]
    stack: list[str]


class Watched:
    """What steps operators, as it is found in the stack of a thread; without operators until it has built them."""

    operators: Sequence[Operator] = ()


class Watchdog:
    """Watches the thread that makes it, inside ``with``.

    A step may take `limit_s`, and `patience_s` longer where an operator has a limit of its own. Every `limit_s` it says
    that the subtask is alive: the driver knows of no patience.
    """

    def __init__(
        self,
        limit_s: float | None,
        signs: Signs,
        clock: Callable[[], float] = time.monotonic,
        *,
        patience_s: float = 0.0,
    ) -> None:
        self._limit_s, self._patience_s = limit_s, patience_s
        self._signs, self._real_clock = signs, clock
        self._thread = threading.get_ident()
        self._moved_s = self._alive_s = clock()
        self._alive = 0
        self._waits = False
        self.waited_s = 0.0
        """For what Spark delivered."""
        self._over = threading.Event()
        self._beside: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self.every_s is not None:
            self._beside = threading.Thread(
                target=self._watch, args=(self.every_s,), name="penstock-watchdog", daemon=True
            )
            self._beside.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        if self._beside is not None:
            self._beside.join(WRITING_S_MAX)

    def clock(self) -> float:
        """The subtask's clock. Reading it shows that the subtask gets on."""
        self._moved_s = now_s = self._real_clock()
        return now_s

    def delivered(self, batches: Iterator[T]) -> Iterator[T]:
        """What Spark delivers; waiting for it is not judged."""
        while True:
            self._waits, since_s = True, self._real_clock()
            try:
                batch = next(batches)
            except StopIteration:
                return
            finally:
                self._moved_s = self._real_clock()
                self.waited_s += self._moved_s - since_s
                self._waits = False
            yield batch

    @property
    def every_s(self) -> float | None:
        """How often it wants to look."""
        return None if self._limit_s is None else self._limit_s / LOOKS

    def look(self) -> bool:
        """Looks once, from another thread; False when there is nothing more to see."""
        assert self._limit_s is not None
        now_s = self._real_clock()
        silent_s = now_s - self._moved_s
        if silent_s > self._limit_s + self._patience_s and not self._waits:
            self._signs.stuck(place_of(self._thread), silent_s)
            return False
        if now_s - self._alive_s > self._limit_s:
            self._alive, self._alive_s = self._alive + 1, now_s
            self._signs.alive(self._alive)
        return True

    def _watch(self, every_s: float) -> None:
        while not self._over.wait(every_s) and self.look():
            pass


def watch_over(
    stage: Stage,
    plan: StagePlan,
    subtask: int,
    *,
    store: Store,
    attempt: str,
    limit_s: float | None,
    clock: Callable[[], float] = time.monotonic,
) -> Watchdog:
    """A watchdog for one attempt, which leaves its signs in the checkpoint folder.

    Operators that have a limit of their own for a step get that long in addition.
    """
    me = AttemptId(plan.checkpoint, plan.generation, subtask, attempt)
    names = [node.spec.name for node in stage.nodes]

    def leave(sign: str, data: bytes) -> None:
        # The attempt may be long over, so a failure to write is ignored.
        with suppress(PenstockError, AlreadyExists):
            store.create(HungSign(me, sign).path, data)

    def stuck(place: Place, silent_s: float) -> None:
        sample = stuck_at(place, stage=stage.name, operators=names, subtask=subtask, attempt=attempt, silent_s=silent_s)
        leave(STUCK, encode_stuck(sample))

    patience_s = max(node.spec.step_s_max for node in stage.nodes)
    return Watchdog(limit_s, Signs(stuck, lambda number: leave(str(number), b"{}")), clock, patience_s=patience_s)


def stuck_at(place: Place, *, stage: str, operators: list[str], subtask: int, attempt: str, silent_s: float) -> Stuck:
    known = place.operator is not None and place.operator < len(operators)
    return Stuck(
        stage=stage,
        subtask=subtask,
        attempt=attempt,
        host=socket.gethostname(),
        pid=os.getpid(),
        silent_s=silent_s,
        operator=operators[place.operator or 0] if known else None,
        function=place.function,
        values=place.values,
        stack=place.stack,
    )


def place_of(thread: int) -> Place:
    """Where a thread of this process is right now."""
    every = sys._current_frames()  # noqa: SLF001 - the only way to see another thread
    frames = _outermost_first(every.get(thread))
    operator = _operator(frames)
    stack = _lines(frames)
    user = _users(frames)
    if user is None:
        # Calls of coroutines run in the event loop's thread, while the subtask waits for them.
        for other in threading.enumerate():
            if other.name == _EVENT_LOOP and other.ident is not None:
                there = _outermost_first(every.get(other.ident))
                user = _users(there)
                stack += [f"thread {other.name}:", *_lines(there)]
    return Place(operator, None if user is None else _named(user), {} if user is None else _values(user), stack)


def _outermost_first(frame: FrameType | None) -> list[FrameType]:
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_ours(frame: FrameType) -> bool:
    return _module(frame).partition(".")[0] == _OURS


def _users(frames: list[FrameType]) -> FrameType | None:
    """The user's function: what our innermost frame called, unless that is nothing or the standard library."""
    ours = [number for number, frame in enumerate(frames) if _is_ours(frame) or _module(frame).startswith("asyncio")]
    inner = frames[ours[-1] + 1 :] if ours else []
    top = _module(inner[0]).partition(".")[0] if inner else ""
    return inner[0] if inner and top not in sys.stdlib_module_names - {"__main__"} else None


def _operator(frames: list[FrameType]) -> int | None:
    """The innermost operator of the subtask whose code runs."""
    operators: Sequence[Operator] = ()
    found = None
    for frame in frames:
        me = frame.f_locals.get("self")
        if isinstance(me, Watched):
            operators = me.operators
        found = next((number for number, one in enumerate(operators) if one is me), found)
    return found


def _named(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_qualname} ({code.co_filename}, line {frame.f_lineno})"


def _lines(frames: list[FrameType]) -> list[str]:
    stack = traceback.extract_stack(frames[-1]) if frames else []
    return [line.rstrip() for line in traceback.format_list(stack[-FRAMES_MAX:])]


def _values(frame: FrameType) -> dict[str, str]:
    """Plain values only: showing others would run code of the user in an unexpected thread."""
    shown = {name: _shown(value) for name, value in list(frame.f_locals.items()) if not name.startswith("__")}
    return dict([(name, text) for name, text in shown.items() if text is not None][:VALUES_MAX])


def _shown(value: object) -> str | None:
    match value:
        case bool() | int() | float() | str() | bytes() | None:
            text = repr(value[:VALUE_CHARS_MAX] if isinstance(value, str | bytes) else value)
        case dict() if type(value) is dict and len(value) <= 20:
            parts = {str(name): _shown(part) for name, part in list(value.items())}
            text = "{" + ", ".join(f"{name!r}: {part or '…'}" for name, part in parts.items()) + "}"
        case _:
            return None
    return text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "…"
