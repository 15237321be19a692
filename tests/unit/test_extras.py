"""What an installation without extras can do: import the package, and say what is missing."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from typing import Any

import pytest

from tests.unit.test_architecture import ROOT

WITHOUT_PYPAIMON = "import sys; sys.modules['pypaimon'] = None\n"
"""Python then finds no such package, neither to import it nor to look for it."""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_PYPAIMON + script], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_penstock_is_imported_without_pypaimon_and_without_the_package_of_paimon_tables() -> None:
    ended = run("import penstock; print([name for name in sys.modules if 'paimon' in name])")
    assert (ended.stdout, ended.stderr) == ("['pypaimon']\n", "")


def test_every_public_name_exists_without_pypaimon() -> None:
    assert run("from penstock import *").stderr == ""


def test_a_pipeline_runs_without_pypaimon() -> None:
    ended = run(
        "import pyarrow as pa, penstock as pen\n"
        "from penstock.testing import Harness, stream_of\n"
        "harness = Harness(stream_of(pa.schema({'k': pa.int64()})).key_by('k').aggregate(n=pen.count()))\n"
        "print(harness.feed([{'k': 1}, {'k': 1}]))"
    )
    assert (ended.stdout, ended.stderr) == ("[{'k': 1, 'n': 2}]\n", "")


@pytest.mark.parametrize(
    "script",
    [
        "import penstock as pen; pen.Paimon('lake', 'shop.orders')",
        "from penstock.cli import main; main(['demo'])",
        "from penstock.cli import main; main(['upkeep', 'lake', 'shop.orders'])",
    ],
)
def test_what_needs_pypaimon_names_the_command_that_installs_it(script: str) -> None:
    ended = run(script)
    assert ended.returncode == 1
    assert "[PEN-001]" in ended.stderr
    assert "pip install 'penstock[paimon]'" in ended.stderr


def test_the_lock_pins_every_package_that_the_project_names(project: Any) -> None:
    named = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    wanted = {_plain(re.split(r"[\[<>=!]", one)[0]) for one in named} - {"penstock"}
    pinned = {_plain(line.split("==")[0]) for line in (ROOT / "requirements.lock").read_text().splitlines()}
    assert wanted - pinned == set()


def test_developers_get_every_extra(project: Any) -> None:
    extras = project["optional-dependencies"]
    (own,) = [one for one in extras["dev"] if one.startswith("penstock[")]
    assert set(own.removeprefix("penstock[").removesuffix("]").split(",")) == extras.keys() - {"dev"}


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
