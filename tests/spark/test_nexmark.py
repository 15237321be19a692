"""The Nexmark-like examples against Spark SQL; `make nexmark` does the same with more events."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples.nexmark.queries import QUERIES

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_every_query_gives_what_spark_sql_gives() -> None:
    """D1, D2, D4."""
    command = [sys.executable, "-m", "examples.nexmark", "--events", "5000", "--files", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == f"{len(QUERIES)} passed, 0 failed"
