"""The demo as a user runs it: killed by SIGKILL, restarted at another parallelism, every row exactly once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-c", "from penstock.cli import main; main()"]


def penstock(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=300, check=False)


def test_the_demo_survives_its_own_sigkill(tmp_path: Path) -> None:
    """E1, B1, B2, B6, C4, C9."""
    done = penstock("demo", "--clicks", "12000", "--folder", str(tmp_path / "demo"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "exactly once: expected 12000, found 12000, missing 0, duplicated 0"
    assert "killed: the driver and its JVM, by SIGKILL" in done.stdout
    assert "listed twice: 0" in done.stdout

    listed = json.loads(penstock("checkpoints", str(tmp_path / "demo" / "checkpoint"), "--json").stdout)
    assert listed[-1]["generation"] == 2
    assert listed[-1]["rows_in_flight"] == 0


def test_a_folder_without_checkpoints_is_told_apart(tmp_path: Path) -> None:
    """E5."""
    done = penstock("checkpoints", str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("[PEN-014] No such checkpoint")
    assert "Traceback" not in done.stderr
