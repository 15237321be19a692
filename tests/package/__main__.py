"""From an empty virtual environment to the first committed rows, by the README alone.

    python -m tests.package                          with this Python
    python -m tests.package --python python3.12      with others, one after the other

For each Python: builds the sdist, unpacks it as a clone would be, makes an empty venv, types what the README says, runs
the programs of the README in a new folder, and reads the table back.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.package.build import ROOT, build, unpacked
from tests.support.pages import python_blocks

CHECK = """
accepted = query.manifest().edges["clicks-to-totals"].accepted
assert accepted > 0 and query.manifest().rows_in_flight == 0
assert sum(rows["n"].to_pylist()) == accepted, (sum(rows["n"].to_pylist()), accepted)
spark.stop()
print(f"committed rows: {rows.num_rows} users with {accepted} clicks")
"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="package", description=__doc__)
    parser.add_argument("--python", action="append", help="a command, or a path")
    for python in parser.parse_args(arguments).python or [sys.executable]:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="penstock-package-") as folder:
            said = by_the_readme(python, Path(folder))
        print(f"{python}: {said}, {time.monotonic() - started:.0f} s", flush=True)
    return 0


def by_the_readme(python: str, folder: Path) -> str:
    """The last line of the programs of the README, run in an empty venv of this Python."""
    (folder / "dist").mkdir()
    _, sdist = build(folder / "dist")
    (folder / "clone").mkdir()
    clone = unpacked(sdist, folder / "clone")
    readme = (clone / "README.md").read_text()
    (command,) = set(re.findall(r'`pip (install "\.\[[^`]*)`', readme))
    venv = folder / "venv"
    _run([python, "-m", "venv", str(venv)], folder)
    _run([str(venv / "bin/pip"), "install", "-q", *_words(command)], clone)
    place = folder / "somewhere"
    place.mkdir()
    blocks = [block.code for block in python_blocks(readme) if block.runs]
    (place / "first.py").write_text("\n".join(blocks) + CHECK)
    lines = _run([str(venv / "bin/python"), "first.py"], place).splitlines()
    _run([str(venv / "bin/penstock"), "status", "checkpoints/totals"], place, codes=(0, 1, 2, 3, 4))
    return lines[-1]


def _words(command: str) -> list[str]:
    """Behind `install`, without the quotes of a shell."""
    return [word.strip('"') for word in command.split()[1:]]


def _run(command: list[str], folder: Path, codes: tuple[int, ...] = (0,)) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "VIRTUAL"))}
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, check=False)
    if done.returncode not in codes:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    assert (ROOT / "README.md").exists()
    raise SystemExit(main(sys.argv[1:]))
