"""CPU time of a process and all below it, read from /proc."""

from __future__ import annotations

import os
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(root: int) -> float:
    """What `root`, its descendants, and those of them that have ended and were waited for have used so far."""
    found = dict(_processes())
    mine, grew = {root}, True
    while grew:
        more = {pid for pid, (parent, _) in found.items() if parent in mine} - mine
        mine |= more
        grew = bool(more)
    return sum(ticks for pid, (_, ticks) in found.items() if pid in mine) / TICKS_PER_S


def _processes() -> list[tuple[int, tuple[int, int]]]:
    """Each process with its parent and its ticks, those of its ended children included."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found.append((int(folder.name), (int(fields[1]), sum(map(int, fields[11:15])))))
    return found
