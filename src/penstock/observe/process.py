"""Whether the process that runs a query lives, as far as that can be told from here."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from penstock.observe.events import DriverProcess
from penstock.observe.verdict import Life

_PROC = Path("/proc")


def this_process() -> DriverProcess:
    pid = os.getpid()
    return DriverProcess(host=socket.gethostname(), pid=pid, began=_began(pid), space=_space())


def life_of(process: DriverProcess | None) -> Life:
    """Certain only on the same machine and in the same container, where process numbers mean the same."""
    if process is None or process.host != socket.gethostname() or process.space != _space() or process.pid <= 0:
        return Life.UNKNOWN
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return Life.GONE
    except (PermissionError, OverflowError):
        return Life.UNKNOWN
    began = _began(process.pid)
    if process.began and began and began != process.began:
        return Life.GONE  # the number belongs to another process by now
    return Life.GONE if _state(process.pid) == "Z" else Life.ALIVE


def _fields(pid: int) -> list[str]:
    """Behind the name of the program, which may hold anything."""
    try:
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _state(pid: int) -> str:
    return next(iter(_fields(pid)), "")


def _began(pid: int) -> str:
    """When it began, in ticks since the machine's start."""
    fields = _fields(pid)
    return fields[19] if len(fields) > 19 else ""


def _space() -> str:
    """The machine's start and the container: where a process number means something."""
    try:
        boot = (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
        return f"{boot} {(_PROC / 'self' / 'ns' / 'pid').readlink()}"
    except OSError:
        return ""
