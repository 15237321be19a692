"""The table of layers: which package of `penstock` may import which, and who may import a library that is not ours."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.unit.test_architecture import PACKAGE, SRC, imports_of, module_name, within

LEAVES = frozenset(
    {"protocol", "text", "version", "errors", "units", "records", "hashing", "slices", "display", "memory", "plain"}
)
"""What everybody may import: values and functions that know nothing of the rest."""

MAY_IMPORT: Mapping[str, frozenset[str]] = {
    # The leaves, in order: each may import those above it.
    "protocol": frozenset(),
    "text": frozenset(),
    "plain": frozenset({"errors"}),
    "version": frozenset(),
    "slices": frozenset(),
    "display": frozenset(),
    "memory": frozenset(),
    "errors": frozenset({"protocol", "text"}),
    "units": frozenset({"errors"}),
    "records": frozenset({"protocol"}),
    "hashing": frozenset({"errors"}),
    # The parts, from storage up to what users write.
    "store": LEAVES,
    "inflight": LEAVES | {"store"},
    "state": LEAVES | {"store"},
    "operators": LEAVES | {"state"},
    "sinks": LEAVES | {"store"},
    "graph": LEAVES | {"operators", "sinks"},
    "subtask": LEAVES | {"store", "inflight", "state", "operators", "sinks", "graph"},
    "observe": LEAVES | {"store", "inflight", "state", "operators"},
    "engine": LEAVES | {"store", "sinks", "graph", "observe"},
    "spark": LEAVES | {"store", "inflight", "graph", "subtask", "observe", "engine"},
    "api": LEAVES | {"store", "operators", "sinks", "graph", "observe", "engine", "spark"},
    "testing": LEAVES
    | {"store", "inflight", "state", "operators", "sinks", "graph", "subtask", "observe", "engine", "api"},
    "events": frozenset({"observe"}),
    "cli": LEAVES | {"store", "sinks", "observe", "engine", "spark", "events"},
}
"""`penstock/__init__.py`, the list of public names, may import everything."""

LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "pyspark": ("spark",),
    "py4j": ("spark",),
    "pypaimon": ("sinks/paimon",),
    "deltalake": ("sinks/delta",),
    "pyiceberg": ("sinks/iceberg",),
    "obstore": ("store",),
    "prometheus_client": ("observe",),
    "click": ("cli", "testing/simulate"),
    "datasketches": ("operators/aggregate",),
}
"""Where a library may be imported; elsewhere only for types."""


def package_of(module: str) -> str:
    """`penstock.sinks.paimon.sink` is in `sinks`; `penstock` itself is in `penstock`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def penstock_imports(path: Path) -> Iterator[tuple[int, str]]:
    """Lines and packages of what a file imports of Penstock, for types too: a cycle of types is a cycle for readers."""
    here = package_of(module_name(path))
    known = MAY_IMPORT.keys()
    for found in imports_of(path.read_text(), module_name(path)):
        parts = found.module.split(".")
        if parts[0] == "penstock" and len(parts) > 1 and parts[1] in known and parts[1] != here:
            yield found.line, parts[1]


def broken_rules(may_import: Mapping[str, frozenset[str]] = MAY_IMPORT) -> list[str]:
    return sorted(
        {
            f"{path.relative_to(SRC)}:{line} imports {package}"
            for path in PACKAGE.rglob("*.py")
            if path != PACKAGE / "__init__.py"
            for line, package in penstock_imports(path)
            if package not in may_import[package_of(module_name(path))]
        }
    )


def test_every_import_is_in_the_table_of_layers() -> None:
    assert broken_rules() == []


def test_the_table_of_layers_has_every_package_and_no_cycle() -> None:
    packages = {entry.stem for entry in PACKAGE.iterdir() if entry.suffix in {"", ".py"} and entry.stem[:2] != "__"}
    assert packages == MAY_IMPORT.keys()
    order = list(TopologicalSorter(MAY_IMPORT).static_order())
    assert order.index("protocol") < order.index("engine") < order.index("api")


def test_the_table_allows_nothing_that_is_not_used() -> None:
    """Leaves aside: everybody may import these."""
    used: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        used.setdefault(package_of(module_name(path)), set()).update(package for _, package in penstock_imports(path))
    unused = {package: allowed - used[package] - LEAVES for package, allowed in MAY_IMPORT.items()}
    assert {package: names for package, names in unused.items() if names} == {}


def test_a_cycle_in_the_table_would_be_noticed() -> None:
    with pytest.raises(CycleError):
        TopologicalSorter({**MAY_IMPORT, "state": MAY_IMPORT["state"] | {"operators"}}).prepare()


def test_an_import_that_is_taken_out_of_the_table_is_noticed() -> None:
    without = {**MAY_IMPORT, "operators": MAY_IMPORT["operators"] - {"state"}}
    assert any(
        "operators/deduplicate/deduplicate_operator.py" in line and line.endswith("imports state")
        for line in broken_rules(without)
    )


@pytest.mark.parametrize("library", sorted(LIBRARIES))
def test_a_library_is_imported_where_it_belongs_alone(library: str) -> None:
    homes = tuple(PACKAGE / home for home in LIBRARIES[library])
    elsewhere = [
        f"{path.relative_to(SRC)}:{found.line}"
        for path in PACKAGE.rglob("*.py")
        if not any(home in path.parents for home in homes)
        for found in imports_of(path.read_text(), module_name(path))
        if found.module.split(".")[0] == library and found.at_runtime
    ]
    assert elsewhere == []


def test_every_package_says_what_lives_in_it() -> None:
    silent = [
        str(folder.relative_to(SRC))
        for folder in PACKAGE.rglob("*/")
        if any(folder.glob("*.py")) and not ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
    ]
    assert silent == []


SPARK = PACKAGE / "spark"
FACES = {"penstock.spark.stage_job.jobs", "penstock.spark.stage_job.run"}
"""What the rest of `spark` may import of the package that owns stage jobs."""


def test_stage_jobs_are_reached_by_their_two_faces_alone() -> None:
    inside = [
        f"{path.relative_to(SRC)}:{found.line} imports {found.module}"
        for path in PACKAGE.rglob("*.py")
        if SPARK / "stage_job" not in path.parents
        for found in imports_of(path.read_text(), module_name(path))
        if found.module.startswith("penstock.spark.stage_job.") and not within(found.module, FACES)
    ]
    assert inside == []


def test_what_runs_in_workers_imports_nothing_that_only_the_driver_needs() -> None:
    code = "import sys, penstock.spark.stage_job.worker; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    ours = {module for module in loaded if within(module, {"penstock.spark.stage_job", "penstock.engine"})}
    assert ours == {
        "penstock.engine",
        "penstock.engine.options",
        "penstock.spark.stage_job",
        "penstock.spark.stage_job.plan_property",
        "penstock.spark.stage_job.worker",
    }


QUIRKS = sorted(path for path in (SPARK / "quirks").glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("path", QUIRKS, ids=lambda path: path.stem)
def test_a_quirk_gives_its_reason_and_the_version_of_spark_it_was_seen_in(path: Path) -> None:
    habit, *reason, seen = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")
    assert habit
    assert reason
    assert re.match(r"Seen in Spark \d+\.\d+\.\d+", seen)


def private_names(source: str) -> list[int]:
    """Lines that read a name with an underscore of anything but `self` and `cls`."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and re.match(r"_[^_]", node.attr)
        and ast.unparse(node.value) not in {"self", "cls"}
    ]


def test_private_names_of_spark_are_touched_in_quirks_alone() -> None:
    elsewhere = [
        f"{path.relative_to(SRC)}:{line}"
        for path in SPARK.rglob("*.py")
        if path not in QUIRKS
        for line in private_names(path.read_text())
    ]
    assert elsewhere == []


def test_a_private_name_is_noticed() -> None:
    assert private_names("class A:\n    def f(self):\n        return self._x._jdf\n") == [3]
