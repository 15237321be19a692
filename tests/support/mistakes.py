"""What users get to see of a mistake: a coded message with a next step, and hardly anything above it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import penstock
from penstock.errors import PenstockError

_INSIDE = str(Path(penstock.__file__).parent)
STACK_LINES_MAX = 5


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake, the code of its message, and what the message and its next step have to say."""

    make: Callable[[], object]
    code: str
    seen: str
    next_step: str


def judge(mistake: Mistake) -> None:
    """Makes the mistake as a program would, and looks at all that would be printed."""
    with pytest.raises(PenstockError) as raised:
        mistake.make()
    error = raised.value
    printed = "".join(traceback.format_exception(error))
    assert error.code == mistake.code, printed
    assert re.search(mistake.seen, f"{error.seen} {error.cause}"), printed
    assert re.search(mistake.next_step, error.next_step), printed
    assert f"[{error.code}]" in printed
    assert not re.search(r"org\.apache|java\.|py4j|\.scala:", printed), printed
    assert len(internal_lines(printed)) <= STACK_LINES_MAX, printed


def internal_lines(printed: str) -> list[str]:
    """The lines of a traceback that show frames of Penstock, each with its source."""
    found: list[str] = []
    inside = False
    for line in printed.splitlines():
        if line.startswith("  File "):
            inside = _INSIDE in line
        elif not line.startswith("    "):
            inside = False
        if inside:
            found.append(line)
    return found
