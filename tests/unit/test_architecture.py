"""The tree is the architecture: what is pure, who has a clock, how large a file may grow."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
PACKAGE = SRC / "penstock"
LINES_MAX = 450

PURE_THIRD_PARTY = {"msgspec", "numpy", "xxhash"}
IMPURE_STDLIB = {
    "asyncio", "concurrent", "datetime", "glob", "io", "logging", "multiprocessing", "os", "pathlib", "random",
    "secrets", "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
PICKLES = {
    "pickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "marshal",
    "shelve",
    "pyspark.cloudpickle",
    "pyspark.serializers",
}
HOMES = tuple(f"/{folder}/" for folder in ("home", "root", "Users"))


@dataclass(frozen=True)
class Import:
    module: str
    line: int
    at_runtime: bool


@cache  # many tests look at the same files
def imports_of(source: str, module: str = "") -> tuple[Import, ...]:
    """Every import in `source`, also inside functions and by `import_module`; `module` resolves relative ones."""
    tree = ast.parse(source)
    typing_only = {id(node) for guard in _typing_guards(tree) for stmt in guard.body for node in ast.walk(stmt)}
    return tuple(
        Import(name, node.lineno, id(node) not in typing_only)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Call)
        for name in _names(node, module)
    )


def _typing_guards(tree: ast.Module) -> Iterator[ast.If]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            yield node


def _names(node: ast.Import | ast.ImportFrom | ast.Call, module: str) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=base, names=names, level=level):
            package = ".".join(module.split(".")[:-level]) if level else ""
            prefix = ".".join(part for part in (package, base) if part)
            # `from pyspark import cloudpickle` names a module too.
            return [prefix, *(f"{prefix}.{alias.name}" for alias in names)]
        case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]):
            called = ast.unparse(func)
            return [name] if called in {"__import__", "import_module", "importlib.import_module"} else []
    return []


def within(module: str, packages: set[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SRC).with_suffix("").parts)


def offenders(
    folder: Path, forbidden: set[str], *, spare: tuple[Path, ...] = (), runtime_only: bool = False
) -> list[str]:
    """Imports of `forbidden` modules under `folder`, files in `spare` left out."""
    return [
        f"{path.relative_to(ROOT)}:{found.line} imports {found.module}"
        for path in sorted(folder.rglob("*.py"))
        if not any(path == spared or spared in path.parents for spared in spare)
        for found in imports_of(path.read_text(), module_name(path))
        if within(found.module, forbidden) and (found.at_runtime or not runtime_only)
    ]


def words_with(source: str, pattern: str) -> list[tuple[int, str]]:
    """String constants and comments that have the pattern. Few files have it anywhere: only these are parsed."""
    found = words_in(source) if re.search(pattern, source) else ()
    return [(line, text) for line, text in found if re.search(pattern, text)]


def words_in(source: str) -> Iterator[tuple[int, str]]:
    """String constants and comments, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def clock_readings(source: str) -> list[int]:
    """Lines that ask the calendar what time it is."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if ast.unparse(call.func).endswith((".now", ".today", ".utcnow"))]


def is_pure(module: str) -> bool:
    top = module.partition(".")[0]
    if top == "penstock":
        return within(module, {"penstock.protocol"})
    return top in PURE_THIRD_PARTY or (top in sys.stdlib_module_names and top not in IMPURE_STDLIB)


def test_protocol_imports_no_spark_no_clock_no_files_and_nothing_else_of_penstock() -> None:
    impure = [
        f"{path.relative_to(ROOT)}:{found.line} imports {found.module}"
        for path in sorted((PACKAGE / "protocol").rglob("*.py"))
        for found in imports_of(path.read_text(), module_name(path))
        if not is_pure(found.module)
    ]
    assert impure == []


def test_nothing_between_rows_and_results_has_a_clock_of_its_own() -> None:
    """Time comes from outside, as the subtask's clock or as the epoch's processing time: so the simulator has it in its
    hand, and a test does not depend on how busy the machine is."""
    pure = ("protocol", "operators", "inflight", "state")
    assert [found for folder in pure for found in offenders(PACKAGE / folder, {"time"})] == []
    readings = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in pure
        for path in sorted((PACKAGE / folder).rglob("*.py"))
        for line in clock_readings(path.read_text())
    ]
    assert readings == []


def test_nothing_but_the_transport_to_spark_imports_pickle() -> None:
    """D7: what is read back from a checkpoint never goes through pickle."""
    assert offenders(PACKAGE, PICKLES, spare=(PACKAGE / "spark",)) == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in python_files("src")
        if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_no_file_is_too_large_to_read_in_one_sitting() -> None:
    lines = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in python_files("src", "tests", "benchmarks", "examples", "scripts")
    }
    assert {path: count for path, count in lines.items() if count > LINES_MAX} == {}


def test_no_loop_gives_another_meaning_to_what_it_goes_through() -> None:
    """The loop would go on through the old value, and what comes after it would use the new one."""
    found = [
        f"{path.relative_to(SRC)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in loops_that_reassign(ast.parse(path.read_text()))
    ]
    assert found == []
    assert list(loops_that_reassign(ast.parse("for a in b:\n    b = f(a)\nfor a in b:\n    c = a"))) == [1]


def loops_that_reassign(tree: ast.AST) -> Iterator[int]:
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Name):
            inside = (name for part in loop.body for name in ast.walk(part) if isinstance(name, ast.Name))
            if any(name.id == loop.iter.id and isinstance(name.ctx, ast.Store) for name in inside):
                yield loop.lineno


def test_no_file_names_a_folder_of_somebodys_machine() -> None:
    named = [
        f"{path.relative_to(ROOT)}:{line}: {text.strip()[:80]}"
        for path in python_files("src", "tests", "benchmarks", "examples", "scripts")
        for line, text in words_with(path.read_text(), "|".join(HOMES))
    ]
    assert named == []


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("import os.path", ["os.path"]),
        ("def f():\n    import time", ["time"]),
        ("from pyspark import cloudpickle", ["pyspark", "pyspark.cloudpickle"]),
        ("from ..store import base", ["penstock.store", "penstock.store.base"]),
        ("importlib.import_module('pyspark')", ["pyspark"]),
        ("text = 'import os'  # import time", []),
    ],
)
def test_the_checker_sees_an_import_in_any_form(source: str, modules: list[str]) -> None:
    assert [found.module for found in imports_of(source, "penstock.protocol.plan")] == modules


def test_the_checker_tells_imports_for_types_from_real_ones() -> None:
    source = "if TYPE_CHECKING:\n    import pyspark\nimport pypaimon"
    assert [(found.module, found.at_runtime) for found in imports_of(source)] == [
        ("pypaimon", True),
        ("pyspark", False),
    ]


@pytest.mark.parametrize("module", ["os", "time", "pyspark.sql", "pyarrow", "penstock.errors", "penstock.store.base"])
def test_the_checker_holds_the_world_to_be_impure(module: str) -> None:
    assert not is_pure(module)


def test_the_checker_sees_who_asks_the_calendar() -> None:
    assert clock_readings("a = datetime.now(UTC)\nb = date.today()\nc = plan.now\n") == [1, 2]


def test_the_checker_finds_a_home_folder_in_a_comment_and_in_a_string() -> None:
    path = HOMES[0] + "me"
    found = [text for _, text in words_with(f"x = {path!r}\n# see {path}\ny = 1  # no folder\n", "|".join(HOMES))]
    assert found == [path, f"# see {path}"]


def test_the_product_says_promises_in_words_and_not_by_codes() -> None:
    """A code such as (B6) means nothing to a reader of the package."""
    codes = [
        f"{path.relative_to(ROOT)}:{line}: {text.strip()[:80]}"
        for path in python_files("src")
        for line, text in words_with(path.read_text(), r"\([A-IR]\d{1,2}(, [A-IR]\d{1,2})*\)")
    ]
    assert codes == []


def test_no_two_public_classes_of_the_package_have_one_name() -> None:
    """One word, one meaning: a reader who knows one `Pins` must not meet another."""
    places: dict[str, list[str]] = {}
    product = (path for path in python_files("src") if PACKAGE / "testing" not in path.parents)
    for path in product:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
