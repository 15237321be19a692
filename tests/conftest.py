"""What every test needs: one Python for driver and workers, nothing but the loopback network."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Before any JVM starts: it hands its environment on to the Python workers.
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
# Functions of test modules are pickled by reference; workers must be able to import them.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The folder decides: tests under spark/ and sinks/ carry the marker of that name."""
    for item in items:
        for marker in {"spark", "sinks"} & set(item.path.relative_to(ROOT / "tests").parts[:-1]):
            item.add_marker(marker)
