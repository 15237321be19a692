"""Modules and functions that the pages name exist, and the traces go down the layers."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.pages import DOCS, PAGES, ROOT, name_of, text_of
from tests.unit.test_architecture import PACKAGE
from tests.unit.test_layers import MAY_IMPORT, package_of

TRACES = DOCS / "internals" / "traces.md"
_PATH = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|sh|toml|yml|lock))`")
_HOP = re.compile(r"^\| (?P<number>[\d.]+) \| `(?P<module>[\w/]+\.py)` `(?P<function>[\w.]+)` \|", re.MULTILINE)


class Hop(NamedTuple):
    number: tuple[int, ...]
    module: str
    function: str

    @property
    def package(self) -> str:
        return package_of("penstock." + self.module.removesuffix(".py").replace("/", "."))


def tables_of(text: str) -> list[list[Hop]]:
    """One list of hops for each table."""
    parts = re.split(r"^\|---", text, flags=re.MULTILINE)[1:]
    return [
        [
            Hop(tuple(map(int, found["number"].split("."))), found["module"], found["function"])
            for found in _HOP.finditer(part)
        ]
        for part in parts
    ]


def caller_of(hop: Hop, before: list[Hop]) -> Hop:
    """The hop whose number this one's begins with."""
    return next(other for other in reversed(before) if other.number == hop.number[:-1])


def climbs(tables: list[list[Hop]]) -> list[str]:
    """Hops to a package that the caller's may not import."""
    return [
        f"{caller.module} calls {hop.module}"
        for hops in tables
        for index, hop in enumerate(hops)
        if len(hop.number) > 1
        for caller in [caller_of(hop, hops[:index])]
        if hop.package not in {caller.package, *MAY_IMPORT[caller.package]}
    ]


@cache
def functions_in(module: str) -> frozenset[str]:
    """Functions, classes and methods of a module, methods behind the name of their class."""
    found = set()
    for node in ast.parse((PACKAGE / module).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return frozenset(found)


HOPS = sorted({(hop.module, hop.function) for hops in tables_of(text_of(TRACES)) for hop in hops})


@pytest.mark.parametrize(("module", "function"), HOPS, ids=[" ".join(hop) for hop in HOPS])
def test_a_hop_of_the_traces_names_a_function_that_exists(module: str, function: str) -> None:
    assert function in functions_in(module)


def test_no_hop_of_the_traces_goes_back_up() -> None:
    tables = tables_of(text_of(TRACES))
    assert sum(map(len, tables)) > 50
    assert climbs(tables) == []


def test_a_hop_that_goes_up_is_noticed() -> None:
    up = "|---|\n| 1 | `store/base.py` `Store` | |\n| 1.1 | `engine/loop.py` `EpochLoop.step` | |\n"
    assert climbs(tables_of(up)) == ["store/base.py calls engine/loop.py"]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_a_page_names_exist(page: Path) -> None:
    """Written from the root of the repository, or from src/penstock."""
    named = set(_PATH.findall(text_of(page))) - {"job.py", "pyspark/daemon.py"}
    assert [path for path in sorted(named) if not ((ROOT / path).exists() or (PACKAGE / path).exists())] == []


def test_the_tree_of_the_architecture_names_every_package() -> None:
    text = text_of(ROOT / "ARCHITECTURE.md")
    tree = text.split("src/penstock/\n")[1].split("```")[0]
    named = {word.rstrip("/") for line in tree.splitlines() for word in line.split() if word.endswith(("/", ".py"))}
    packages = [found.parent for found in PACKAGE.rglob("*/__init__.py") if found.parent != PACKAGE]
    parts = [part.relative_to(PACKAGE) for part in [*PACKAGE.glob("*.py"), *packages] if part.name != "__init__.py"]
    assert [str(part) for part in parts if not any(part.match(name) for name in named)] == []


def test_targets_of_make_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"(?:`|^)make ([a-z-]+)", text_of(page), re.MULTILINE)}
    assert len(named) > 15
    assert named - targets == set()
