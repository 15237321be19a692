"""What the documents say is so: their programs run, their tables and links are right, examples in docstrings hold."""

from __future__ import annotations

import ast
import doctest
import importlib
import json
import pkgutil
import re
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.engine.options import Config
from penstock.errors import catalogue
from penstock.sinks.paimon.read import read_table
from scripts.errors_page import errors_page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
GUIDES = [
    DOCS / "guides" / f"{name}.md"
    for name in (
        "sources", "transform", "calls", "dead-letters", "aggregates", "windows", "state", "joins", "test", "tables",
        "commits", "upkeep", "run", "restore", "rescale", "monitor", "object-stores",
    )
]  # fmt: skip
"""In the order in which their programs build on each other."""

_BLOCK = re.compile(
    r"(?P<mark><!-- not run: [^\n]+ -->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)
_LINK = re.compile(r"\[[^\]]+\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


@dataclass(frozen=True)
class Block:
    """A piece of Python in a document; `line` is the line before its first one."""

    code: str
    line: int
    runs: bool


def python_blocks(text: str) -> list[Block]:
    return [
        Block(found["code"], text.count("\n", 0, found.start("code")), runs=found["mark"] is None)
        for found in _BLOCK.finditer(text)
        if found["language"] == "python"
    ]


def run_pages(*pages: Path) -> dict[str, Any]:
    """Runs the blocks of pages as one program, as if it were started as a script; returns its variables."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for page in pages:
        for block in python_blocks(page.read_text(encoding="utf-8")):
            # Moved down to where it stands in the page, so that a traceback names the page's line.
            program = compile("\n" * block.line + block.code, str(page), "exec")
            if block.runs:
                exec(program, names)
    return names


# --- programs ------------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_the_program_of_the_readme_counts_every_row_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_pages(README)
    accepted = names["query"].manifest().edges["clicks-to-totals"].accepted
    assert accepted > 0
    assert names["query"].manifest().rows_in_flight == 0
    assert sum(names["rows"]["n"].to_pylist()) == accepted
    assert names["rows"].num_rows == 100


@pytest.mark.spark
def test_the_program_of_the_guides_does_what_they_say(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_pages(*GUIDES)
    numbered = read_table("warehouse", "shop.numbered").to_pylist()
    assert Counter(row["amount"] for row in numbered) == Counter([*range(400), 1000])
    assert Counter((row["user"], row["nth"]) for row in numbered) == Counter(
        (user, nth) for user in range(5) for nth in range(1, 82 if user == 1 else 81)
    )
    assert Counter(read_table("warehouse", "shop.taxed")["amount"].to_pylist()) == Counter([*range(6, 400), 1000])
    assert Counter(read_table("warehouse", "shop.priced")["amount"].to_pylist()) == Counter([*range(400), 1000])
    letters = read_table("warehouse", "shop.dead_letters").to_pylist()
    failed = [json.loads(letter["record"])["amount"] for letter in letters]
    assert sorted(failed) == [*range(0, 400, 50), 1000]
    totals = read_table("warehouse", "shop.totals").to_pylist()
    assert {row["total"] for row in totals if (row["user"], row["n"]) == (1, 81)} == {sum(range(1, 400, 5)) + 1000}


def test_every_block_that_is_not_run_says_why_and_there_are_few() -> None:
    blocks = [block for page in PAGES for block in python_blocks(page.read_text(encoding="utf-8"))]
    assert sum(block.runs for block in blocks) >= 8
    assert sum(not block.runs for block in blocks) <= 1


def test_the_finder_of_blocks_tells_languages_and_marks_apart() -> None:
    text = "```sh\nls\n```\n\n<!-- not run: no -->\n```python\na\n```\n\n```python\nb\n```\n"
    assert [(block.code, block.line, block.runs) for block in python_blocks(text)] == [
        ("a\n", 6, False),
        ("b\n", 10, True),
    ]


MODULES = [module.name for module in pkgutil.walk_packages(penstock.__path__, "penstock.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


# --- tables and links ----------------------------------------------------------------------------------------------


def test_the_page_of_errors_is_what_the_catalogue_says() -> None:
    """Renew it with ``python scripts/errors_page.py > docs/reference/errors.md``."""
    assert (DOCS / "reference" / "errors.md").read_text(encoding="utf-8") == errors_page()


def test_the_page_of_errors_names_every_code() -> None:
    assert set(catalogue()) - set(re.findall(r"PEN-\d{3}", errors_page())) == set()


def test_codes_in_the_documents_exist() -> None:
    named = {code for page in PAGES for code in re.findall(r"PEN-\d{3}", page.read_text(encoding="utf-8"))}
    assert named - set(catalogue()) == set()


def test_the_table_of_options_has_every_option_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (?:`([^`]+)`)? ?\|", _text(DOCS / "reference" / "options.md"), re.MULTILINE)
    defaults = {name: ast.literal_eval(text) for name, text in rows if text}
    assert [name for name, _ in rows] == [option.name for option in fields(Config)]
    assert set(defaults) == {option.name for option in fields(Config)} - {"checkpoint"}
    assert Config.of("folder", **defaults) == Config(checkpoint="folder")


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for path, anchor in _LINK.findall(page.read_text(encoding="utf-8")):
        target = page if not path else (page.parent / path).resolve()
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            lost.append(f"{path}#{anchor}")
    assert lost == []


def _anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", penstock.__all__)
def test_every_public_name_is_in_the_readme_or_a_guide(name: str) -> None:
    assert any(re.search(rf"\b{name}\b", _text(page)) for page in (README, *GUIDES))


def test_every_guide_is_run() -> None:
    assert {*GUIDES, DOCS / "guides" / "index.md"} == set((DOCS / "guides").glob("*.md"))
