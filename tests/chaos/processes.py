"""The processes of a driver, found in /proc: Python driver, JVM, executors and workers are one session."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """A running process."""

    pid: int
    parent: int
    command: str


def of_session(session: int) -> list[Process]:
    """Everything that runs in a session, oldest process id first. Dead ones that nobody waited for are left out."""
    found = [_read(int(folder.name), session) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return sorted((process for process in found if process is not None), key=lambda process: process.pid)


def _read(pid: int, session: int) -> Process | None:
    try:
        state, parent, _, its_session, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None  # it has ended meanwhile
    return Process(pid, int(parent), command) if int(its_session) == session and state != "Z" else None


def workers(session: int) -> list[int]:
    """Python workers: children of Spark's daemons, which look alike."""
    daemons = {process.pid: process for process in of_session(session) if "pyspark.daemon" in process.command}
    return [pid for pid, process in daemons.items() if process.parent in daemons]


def jvms(session: int) -> list[int]:
    """The driver's JVM: one, or none any more. What it is just about to start still has its command line."""
    found = {process.pid: process for process in of_session(session) if "deploy.SparkSubmit" in process.command}
    return [pid for pid, process in found.items() if process.parent not in found]


def executors(session: int) -> list[int]:
    """JVMs of a cluster's executors; a local Spark has none."""
    return [process.pid for process in of_session(session) if "CoarseGrainedExecutorBackend" in process.command]


def send(pid: int, what: signal.Signals) -> bool:
    """Whether the process was still there."""
    try:
        os.kill(pid, what)
    except ProcessLookupError:
        return False
    return True


def send_all(session: int, what: signal.Signals) -> None:
    """To all processes of a session: workers have a process group of their own."""
    for process in of_session(session):
        send(process.pid, what)


def resident_bytes(pid: int) -> int:
    """What a process holds in memory; 0 when it has ended."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def open_files(pid: int) -> int:
    """How many descriptors a process holds; 0 when it has ended."""
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0


def threads(pid: int) -> int:
    """How many threads a process has; 0 when it has ended."""
    try:
        return len(list(Path(f"/proc/{pid}/task").iterdir()))
    except OSError:
        return 0
