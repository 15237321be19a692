"""Children of a process that has imported everything: each starts within milliseconds and does one piece of work.

Threads, caches and replaced functions that a fault leaves behind end with the child. The parent must not have started
threads of its own: a child has only the thread that forked.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Done(Generic[Answer]):
    """What became of one piece of work: an answer, or why there is none."""

    item: str
    answer: Answer | None
    why: str
    real_s: float


@dataclass(frozen=True)
class _Child:
    item: str
    pid: int
    answer: Connection
    processor: int | None
    began: float


def in_children(
    work: Callable[[str], Answer], items: Sequence[str], jobs: int, limit_s: float
) -> Iterator[Done[Answer]]:
    """Does `work` for each item, `jobs` at a time, and tells of each when it ends; a child that takes longer than
    `limit_s` is killed."""
    gc.collect()
    gc.freeze()  # what a child's garbage collection touches would be copied
    waiting, running = list(reversed(items)), list[_Child]()
    processors = _processors(jobs)
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_fork(work, waiting.pop(), processors.pop()))
            ready = wait([child.answer for child in running], _seconds_left(running, limit_s))
            for child in [child for child in running if child.answer in ready or _seconds_left([child], limit_s) <= 0]:
                running.remove(child)
                processors.append(child.processor)
                yield _ended(child, limit_s, in_time=child.answer in ready)
    finally:
        for child in running:
            _kill(child)
        gc.unfreeze()


def _processors(jobs: int) -> list[int | None]:
    """One for each child: the simulator's threads take turns, which takes ten times as long on two processors."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return [usable[number % len(usable)] if usable else None for number in range(jobs)]


def _seconds_left(children: Sequence[_Child], limit_s: float) -> float:
    return max(0.0, min(child.began for child in children) + limit_s - time.monotonic())


def _fork(work: Callable[[str], Any], item: str, processor: int | None) -> _Child:
    ours, theirs = Pipe(duplex=False)
    pid = os.fork()
    if pid == 0:
        ours.close()
        _work(work, item, processor, theirs)
    theirs.close()
    return _Child(item, pid, ours, processor, time.monotonic())


def _work(work: Callable[[str], Any], item: str, processor: int | None, answer: Connection) -> None:
    """The child; it does not return, and waits for no thread."""
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a fault that hangs ends with the parent
        if processor is not None:
            os.sched_setaffinity(0, {processor})
        answer.send((work(item), ""))
    except BaseException:  # noqa: BLE001 - the parent tells of it
        answer.send((None, traceback.format_exc()))
    finally:
        os._exit(0)


def _ended(child: _Child, limit_s: float, *, in_time: bool) -> Done[Any]:
    answer, why = None, f"not at its end after {limit_s:.0f} s"
    if in_time:
        try:
            answer, why = child.answer.recv()
        except EOFError:
            why = "the process died"
    _kill(child)
    return Done(child.item, answer, why, time.monotonic() - child.began)


def _kill(child: _Child) -> None:
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
    child.answer.close()
