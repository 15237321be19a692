"""What the pages say is so: their programs run, and examples in docstrings hold."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.support.pages import DOCS, PAGES, README, name_of, python_blocks, run_page, text_of


def programs() -> Iterator[Any]:
    """Every page with a program, but the README, which is looked at more closely."""
    for page in PAGES:
        blocks = python_blocks(text_of(page))
        if page != README and any(block.runs for block in blocks):
            on_spark = any(block.runs and "pen.session(" in block.code for block in blocks)
            yield pytest.param(page, id=name_of(page), marks=[pytest.mark.spark] if on_spark else [])


@pytest.mark.parametrize("page", list(programs()))
def test_the_program_of_a_page_does_what_the_page_says(
    page: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages say it by `assert`."""
    if request.node.get_closest_marker("spark"):
        request.getfixturevalue("spark")
    monkeypatch.chdir(tmp_path)
    run_page(page)


@pytest.mark.spark
def test_the_program_of_the_readme_counts_every_row_once(
    spark: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page(README)
    accepted = names["query"].manifest().edges["clicks-to-totals"].accepted
    assert accepted > 0
    assert names["query"].manifest().rows_in_flight == 0
    assert sum(names["rows"]["n"].to_pylist()) == accepted
    assert names["rows"].num_rows == 100


def test_every_guide_has_a_program_and_few_blocks_are_not_run() -> None:
    without = {"index.md", "kafka.md", "object-stores.md"}
    guides = [page for page in (DOCS / "guides").glob("*.md") if page.name not in without]
    assert [page.name for page in guides if not any(block.runs for block in python_blocks(text_of(page)))] == []
    assert sum(not block.runs for page in PAGES for block in python_blocks(text_of(page))) <= 1


def test_the_finder_of_blocks_tells_languages_and_marks_apart() -> None:
    text = "```sh\nls\n```\n\n<!-- not run: no -->\n```python\na\n```\n\n```python\nb\n```\n"
    assert [(block.code, block.line, block.runs) for block in python_blocks(text)] == [
        ("a\n", 6, False),
        ("b\n", 10, True),
    ]


@pytest.mark.parametrize("name", penstock.__all__)
def test_every_public_name_is_in_the_readme_or_a_guide(name: str) -> None:
    pages = (README, *(DOCS / "guides").glob("*.md"))
    assert any(re.search(rf"\b{name}\b", text_of(page)) for page in pages)


MODULES = [module.name for module in pkgutil.walk_packages(penstock.__path__, "penstock.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
