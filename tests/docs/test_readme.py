"""The README: figures that docs/performance.md has, and the whole offer on the first screen."""

from __future__ import annotations

import re

from tests.support.pages import DOCS, README, text_of

FIGURE = r"\d[\d.,]*(?:k rows/s| s\b| bytes)"


def test_figures_of_the_readme_are_those_of_the_performance_page() -> None:
    table = [line for line in text_of(README).split("\n## ")[0].splitlines() if line.startswith("|")]
    figures = {figure.removesuffix(" rows/s") for line in table for figure in re.findall(FIGURE, line)}
    assert len(figures) >= 9
    page = text_of(DOCS / "performance.md")
    assert {figure for figure in figures if figure.removesuffix(" bytes") not in page} == set()


def test_the_readme_sells_before_its_first_heading() -> None:
    screen = text_of(README).split("\n## ")[0]
    assert all(part in screen for part in ("docs/img/epoch.svg", "```python", "exactly once: expected", "Flink"))
    (code,) = re.findall(r"```python\n(.*?)```", screen, re.DOTALL)
    assert len(code.splitlines()) <= 10
    assert len(screen.splitlines()) <= 50
