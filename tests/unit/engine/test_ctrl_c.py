"""Ctrl-C and SIGTERM in a real terminal, with the signal handler of a library that lets waits go on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.terminal import Terminal
from tests.support.terminal import terminal as in_terminal


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    with in_terminal([sys.executable, "-m", "tests.support.ctrl_c_job", *arguments]) as screen:
        yield screen


def test_ctrl_c_ends_a_program_that_waits_for_its_query(tmp_path: Path) -> None:
    with terminal(str(tmp_path), "work") as screen:
        screen.wait_for("checkpoint 3")
        screen.wait_for("waits")
        screen.press_ctrl_c()
        assert screen.end() == -2
        assert "interrupted, active=False, error=None" in screen.shown
        assert "KeyboardInterrupt" in screen.shown
        assert "PEN-" not in screen.shown


def test_a_second_ctrl_c_ends_a_program_whose_query_hangs(tmp_path: Path) -> None:
    with terminal(str(tmp_path), "hang") as screen:
        screen.wait_for("hangs")
        screen.wait_for("waits")
        screen.press_ctrl_c()
        screen.wait_for("once more")
        screen.press_ctrl_c()
        assert screen.end() == -2
        assert "interrupted, active=True, error=None" in screen.shown
        assert screen.shown.count("Traceback") == 1


def test_sigterm_ends_a_program_that_waits_for_its_query(tmp_path: Path) -> None:
    with terminal(str(tmp_path), "work") as screen:
        screen.wait_for("checkpoint 3")
        screen.wait_for("waits")
        screen.program.terminate()
        assert screen.end() == 143
        assert "interrupted, active=False, error=None" in screen.shown
        assert "SIGTERM once more stops it at once" in screen.shown
        assert "Traceback" not in screen.shown
        assert "PEN-" not in screen.shown


def test_sigterm_ends_a_program_that_does_something_else(tmp_path: Path) -> None:
    with terminal(str(tmp_path), "elsewhere") as screen:
        screen.wait_for("elsewhere")
        screen.wait_for("checkpoint 3")
        screen.program.terminate()
        assert screen.end() == 143
        assert "Traceback" not in screen.shown
    assert '"reason":"stopped"' in "".join(path.read_text() for path in tmp_path.rglob("events*.jsonl"))


def test_a_second_sigterm_ends_a_program_whose_query_hangs(tmp_path: Path) -> None:
    with terminal(str(tmp_path), "hang") as screen:
        screen.wait_for("hangs")
        screen.wait_for("waits")
        screen.program.terminate()
        screen.wait_for("once more")
        screen.program.terminate()
        assert screen.end() == -15


def test_a_program_keeps_its_own_answer_to_sigterm(tmp_path: Path) -> None:
    with terminal(str(tmp_path), "own answer") as screen:
        screen.wait_for("checkpoint 3")
        screen.wait_for("waits")
        screen.program.terminate()
        screen.wait_for("own answer")
        screen.press_ctrl_c()
        assert screen.end() == -2
