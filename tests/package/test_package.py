"""What is in the wheel and the sdist, and that the README's way from nothing to committed rows works."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.package.build import ROOT, build, in_wheel, unpacked


def test_the_wheel_has_the_whole_package_and_nothing_else_and_the_sdist_builds_the_same(tmp_path: Path) -> None:
    wheel, sdist = build(tmp_path)
    source = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    found = in_wheel(wheel)
    assert {name for name in found if ".dist-info/" not in name} == source
    assert "penstock/py.typed" in found
    (tmp_path / "tree").mkdir()
    tree = unpacked(sdist, tmp_path / "tree")
    for needed in ("README.md", "LICENSE", "Makefile", "requirements.lock", "docs/index.md", "tests/conftest.py"):
        assert (tree / needed).exists(), needed
    (tmp_path / "again").mkdir()
    assert in_wheel(build(tmp_path / "again", tree)[0]) == found


@pytest.mark.slow
@pytest.mark.spark
def test_the_readme_leads_from_an_empty_venv_to_committed_rows(tmp_path: Path) -> None:
    from tests.package.__main__ import by_the_readme

    assert by_the_readme(sys.executable, tmp_path).startswith("committed rows: 100 users")
