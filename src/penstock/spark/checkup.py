"""What Python, packages, clock and storage each executor has, asked by a job that needs nothing but Python there."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

PACKAGES = ("penstock", "pyspark", "pyarrow", "numpy", "pandas", "msgspec", "xxhash", "pypaimon")
TASKS_PER_SLOT = 2
"""So that each executor gets one at least, as far as that can be had."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What one Python worker, or the driver, says of itself.

    `store` is what is wrong with the checkpoint's storage there, None if nothing is or nobody asked. The clock was read
    between `asked_s` and `answered_s` of the driver's clock.
    """

    host: str
    python: str
    executable: str
    packages: dict[str, str | None]
    store: str | None
    clock_s: float
    asked_s: float = 0.0
    answered_s: float = 0.0


def executors_of(spark: SparkSession, store_url: str | None, probe: str | None) -> list[Machine]:
    """One machine for each host and Python that the job met. `probe` is a file of the store that all should see."""
    look = _look(list(PACKAGES), store_url, probe)
    context = spark.sparkContext
    tasks = max(2, int(context.defaultParallelism) * TASKS_PER_SLOT)
    asked_s = time.time()
    answers = context.parallelize(range(tasks), tasks).map(lambda _: look()).collect()
    answered_s = time.time()
    found: dict[tuple[str, str], Machine] = {}
    for answer in answers:
        machine = Machine(**json.loads(answer), asked_s=asked_s, answered_s=answered_s)
        found.setdefault((machine.host, machine.executable), machine)
    return sorted(found.values(), key=lambda machine: (machine.host, machine.executable))


def driver() -> Machine:
    return Machine(**json.loads(_look(list(PACKAGES), None, None)()))


def _look(packages: list[str], store_url: str | None, probe: str | None) -> Any:
    """A function that Spark sends as code, not by its name: an executor may lack this very package."""

    def look() -> str:
        import importlib
        import json
        import platform
        import socket
        import sys
        import time

        versions: dict[str, str | None] = {}
        for name in packages:
            try:
                versions[name] = str(getattr(importlib.import_module(name), "__version__", "unknown"))
            except Exception as error:
                versions[name] = None if isinstance(error, ModuleNotFoundError) else f"broken: {error}"
        wrong = None
        if store_url is not None and versions.get("penstock"):
            try:
                importlib.import_module("penstock.store").open_store(store_url).read(probe)
            except Exception as error:
                wrong = f"{type(error).__name__}: {error}"
        return json.dumps(
            {
                "host": socket.gethostname(),
                "python": platform.python_version(),
                "executable": sys.executable,
                "packages": versions,
                "store": wrong,
                "clock_s": time.time(),
            }
        )

    return look
