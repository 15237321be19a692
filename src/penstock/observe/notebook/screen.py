"""Where a live view is drawn: a cell of a notebook, or a terminal. IPython is used only where it runs already."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Protocol, TextIO

from penstock.observe.lines import CLEAR, top_lines
from penstock.observe.model import QueryView
from penstock.observe.notebook.panel import panel
from penstock.text import printable


class Screen(Protocol):
    """Draws over what it drew before."""

    def draw(self, view: QueryView) -> None: ...


class Cell:
    """The output of one cell."""

    def __init__(self, display: Any) -> None:
        self._display, self._handle = display, None

    def draw(self, view: QueryView) -> None:
        shown = self._display.HTML(panel(view))
        if self._handle is None:
            self._handle = self._display.display(shown, display_id=True)
        else:
            self._handle.update(shown)


class Terminal:
    """A terminal is cleared before each picture; a file gets one picture below the other."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def draw(self, view: QueryView) -> None:
        if self._out.isatty():
            self._out.write(CLEAR)
        self._out.write("\n".join(map(printable, top_lines(view))) + "\n")
        self._out.flush()


def screen_here() -> Screen:
    """A cell if this is a notebook's kernel, else the terminal."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None and hasattr(shell, "kernel"):
        return Cell(import_module("IPython.display"))
    return Terminal(sys.stdout)
