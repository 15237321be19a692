"""Ctrl-C and SIGTERM wait while parts of a query are being started.

A start that is left in the middle leaves threads and a streaming query of Spark behind that nobody stops: the program
ends under them, and Spark logs errors. So the first signal is answered when the start is through, which takes seconds.
A second one is answered at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

HELD = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_held() -> Iterator[None]:
    """Answers a signal that came inside the block at its end, as the program would have answered it.

    Only the main thread gets signals; in another one this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    answers: dict[int, Any] = {number: signal.getsignal(number) for number in HELD}
    came: list[tuple[int, FrameType | None]] = []

    def hold(number: int, frame: FrameType | None) -> None:
        came.append((number, frame))
        if len(came) > 1:
            _restore(answers, hold)
            answers[number](number, frame)

    for number, answer in answers.items():
        if callable(answer):  # what Python does not answer, it cannot hold
            signal.signal(number, hold)
    try:
        yield
    finally:
        _restore(answers, hold)
        if len(came) == 1:
            number, frame = came[0]
            answers[number](number, frame)


def _restore(answers: dict[int, Any], hold: Any) -> None:
    for number, answer in answers.items():
        if signal.getsignal(number) is hold:  # the program may have chosen another answer in the meantime
            signal.signal(number, answer)
