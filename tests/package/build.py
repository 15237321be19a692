"""Builds the wheel and the sdist, and says what is in them."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def build(folder: Path, root: Path = ROOT) -> tuple[Path, Path]:
    """The wheel and the sdist of the tree `root`."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def unpacked(sdist: Path, folder: Path) -> Path:
    """The tree in an sdist."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    return tree
