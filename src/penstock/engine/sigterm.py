"""SIGTERM, as Kubernetes, systemd and `kill` send it: the query stops after its running epoch, as after Ctrl-C.

Python's own answer to SIGTERM is to die at once, without a word. A restart would repeat the running epoch.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import FrameType

_log = logging.getLogger("penstock")

EXIT_CODE = 128 + signal.SIGTERM
"""What shells and supervisors expect of a program that SIGTERM ended."""


class Terminated(SystemExit):
    """Raised in the main thread after SIGTERM. Like every `SystemExit` it ends the program without a traceback."""

    def __init__(self) -> None:
        super().__init__(EXIT_CODE)


def stop_on_sigterm() -> None:
    """Answers SIGTERM by ending the program, which ends its queries.

    A program that has its own answer keeps it. Only the main thread may choose, so a query that another thread starts
    changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    process = os.getpid()

    def terminate(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of signal handlers
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends the program at once
        if os.getpid() != process:  # a forked child has no query to end
            os.kill(os.getpid(), signal.SIGTERM)
            return
        _log.warning("SIGTERM: the program ends after the running epoch; a second SIGTERM ends it at once")
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
