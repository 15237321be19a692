"""Memory of Spark's Python workers, read from /proc while a job runs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Self


def python_workers() -> list[int]:
    """Process ids of the workers that pyspark's daemons forked."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            command = (folder / "cmdline").read_bytes()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            parent_command = Path(f"/proc/{parent}/cmdline").read_bytes()
        except (OSError, ValueError):
            continue
        if b"pyspark.daemon" in command and b"pyspark.daemon" in parent_command:
            found.append(int(folder.name))
    return found


def resident_bytes(pid: int) -> int:
    """What the process holds in memory; 0 when it has ended."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


class PeakMemory:
    """Watches the workers every 50 ms; `peak_bytes` is the most that a single one held."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            self.peak_bytes = max(self.peak_bytes, *map(resident_bytes, python_workers()), 0)
