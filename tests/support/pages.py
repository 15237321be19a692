"""The pages of documentation: which there are, the programs in them, their headings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])

_BLOCK = re.compile(
    r"(?P<mark><!-- not run: [^\n]+ -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A piece of Python in a page; `line` is the line before its first one."""

    code: str
    line: int
    runs: bool


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose_of(page: Path) -> str:
    """The page without its code; lines keep their numbers."""
    return _FENCED.sub(lambda code: "\n" * code[0].count("\n"), text_of(page))


def headings_of(page: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)


def python_blocks(text: str) -> list[Block]:
    return [
        Block(found["code"], text.count("\n", 0, found.start("code")), runs=found["mark"] is None)
        for found in _BLOCK.finditer(text)
        if found["language"] == "python"
    ]


def run_page(page: Path) -> dict[str, Any]:
    """Runs the blocks of a page as one program, as if it were started as a script; returns its variables."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in python_blocks(text_of(page)):
        # Moved down to where it stands in the page, so that a traceback names the page's line.
        program = compile("\n" * block.line + block.code, str(page), "exec")
        if block.runs:
            exec(program, names)
    return names
