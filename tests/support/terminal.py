"""A program in a terminal of its own: what it shows is read, and keys are pressed."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.chaos.processes import send_all

LIMIT_S = 60.0


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, program: subprocess.Popen[bytes], screen: int, limit_s: float) -> None:
        self.program, self._screen, self._limit_s, self.shown = program, screen, limit_s, ""

    def wait_for(self, text: str, times: int = 1) -> None:
        deadline = time.monotonic() + self._limit_s
        while self.shown.count(text) < times:
            assert time.monotonic() < deadline, self.shown
            if not self._read():
                break
        assert self.shown.count(text) >= times, self.shown

    def press_ctrl_c(self) -> None:
        os.write(self._screen, b"\x03")

    def end(self) -> int:
        deadline = time.monotonic() + self._limit_s
        while self._read():
            assert time.monotonic() < deadline, self.shown
        return self.program.wait(self._limit_s)

    def _read(self) -> bool:
        """False at the end of the program."""
        if select.select([self._screen], [], [], 0.2)[0]:
            try:
                self.shown += os.read(self._screen, 65_536).decode(errors="replace")
            except OSError:  # Linux says so when nobody has the other side open any more
                return False
        return True


def _as_a_shell_does() -> None:
    """In the new process: its terminal is this one, and Ctrl-C counts, also where whoever runs the tests ignores it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def terminal(command: Sequence[str], limit_s: float = LIMIT_S) -> Iterator[Terminal]:
    """Keys that are pressed are signals for the program and its children. None of them outlives the block."""
    screen, keyboard = pty.openpty()
    program = subprocess.Popen(
        command,
        stdin=keyboard,
        stdout=keyboard,
        stderr=keyboard,
        start_new_session=True,
        preexec_fn=_as_a_shell_does,  # noqa: PLW1509 - two calls, and no lock is needed for them
    )
    os.close(keyboard)
    try:
        yield Terminal(program, screen, limit_s)
    finally:
        send_all(program.pid, signal.SIGKILL)
        program.kill()
        program.wait()
        os.close(screen)
