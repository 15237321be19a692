"""One rule for every family of operators: a spec in `x.py`, its operator in `x_operator.py`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from penstock import operators
from tests.unit.test_architecture import PACKAGE

HOME = PACKAGE / "operators"
ROW = re.compile(
    r"^\| `(?P<family>\w+)` \| `(?P<spec>\w+\.py)`: (?P<names>[^|]*) \| (?P<operators>[^|]*) \|$", re.MULTILINE
)


def classes_with(path: Path, method: str, argument: str) -> list[str]:
    """Classes with a method of this name and with this as its second argument."""
    return [
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, ast.FunctionDef) and part.name == method
        if [f"{arg.arg}: {ast.unparse(arg.annotation)}" for arg in part.args.args[1:2] if arg.annotation] == [argument]
    ]


def files_with(method: str, argument: str) -> dict[str, list[str]]:
    found = {path: classes_with(path, method, argument) for path in HOME.rglob("*.py") if path.name != "base.py"}
    return {path.relative_to(HOME).as_posix(): names for path, names in found.items() if names}


SPECS = files_with("build", "context: OperatorContext")
OPERATORS = files_with("process", "records: Records")
TABLE = [row.groupdict() for row in ROW.finditer(operators.__doc__ or "")]


def test_operators_and_nothing_else_are_in_files_that_end_with_operator() -> None:
    assert {path for path in OPERATORS if not path.endswith("_operator.py")} == set()
    assert {path.relative_to(HOME).as_posix() for path in HOME.rglob("*_operator.py")} == OPERATORS.keys()


def test_no_file_has_both_a_spec_and_an_operator() -> None:
    assert SPECS.keys() & OPERATORS.keys() == set()


def test_the_table_of_families_has_every_spec() -> None:
    told = {f"{row['family']}/{row['spec']}": set(re.findall(r"`(\w+)`", row["names"])) for row in TABLE}
    assert {path: set(names) for path, names in SPECS.items()}.items() <= told.items()


def test_the_table_of_families_has_every_operator() -> None:
    told = {f"{row['family']}/{name}" for row in TABLE for name in re.findall(r"`(\w+\.py)`", row["operators"])}
    assert told == OPERATORS.keys()


def test_a_spec_and_its_operator_have_one_name() -> None:
    odd = {
        row["spec"]: row["operators"]
        for row in TABLE
        if f"`{row['spec'].removesuffix('.py')}_operator.py`" != row["operators"]
    }
    assert odd == {"window_aggregate.py": "`window_operator.py`, `session_operator.py`"}, "two kinds of windows"


def test_an_operator_knows_its_spec_by_type_only() -> None:
    """Else the two would import each other."""
    specs = {path.removesuffix(".py").replace("/", ".") for path in SPECS}
    at_runtime = {
        path: node.module
        for path in OPERATORS
        for node in ast.parse((HOME / path).read_text()).body
        if isinstance(node, ast.ImportFrom) and (node.module or "").removeprefix("penstock.operators.") in specs
    }
    assert at_runtime == {}
