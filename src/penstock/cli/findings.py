"""What `penstock doctor` makes of what it saw: pure functions from facts to findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

from penstock.errors import PenstockError
from penstock.store.base import AlreadyExists, Store

if TYPE_CHECKING:
    from penstock.spark.checkup import Machine

PYTHONS = ((3, 11), (3, 13))
PYARROWS = ((18, 0), (20, 0))
NEEDED = ("penstock", "pyspark", "pyarrow", "numpy", "pandas", "msgspec", "xxhash")
MUST_EQUAL = ("penstock", "pyspark", "pyarrow", "pypaimon")
PROBES = "doctor"
"""The folder of files that the doctor makes and removes."""
CLOCK_S_MAX = 1.0
"""Clocks decide about processing time and ages of files. A second is far more than NTP leaves."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor: what was looked at, how it is, what was seen, and what to do."""

    what: str
    state: Literal["ok", "bad", "unknown"]
    seen: str
    next_step: str = ""


def tried(what: str, look: Callable[[], str]) -> Finding:
    """What `look` says, or the error that it raises."""
    try:
        return Finding(what, "ok", look())
    except PenstockError as error:
        return Finding(what, "bad", error.seen, error.next_step)


def python_finding(version: str) -> Finding:
    """
    >>> python_finding("3.12.4").state, python_finding("3.14.0").state
    ('ok', 'bad')
    """
    if PYTHONS[0] <= _numbers(version) <= PYTHONS[1]:
        return Finding("Python", "ok", version)
    return Finding("Python", "bad", version, "use Python 3.11, 3.12 or 3.13, on the driver and on the executors")


def package_findings(machine: Machine) -> list[Finding]:
    """Of the driver."""
    found = []
    for name in NEEDED[2:]:
        version = machine.packages.get(name)
        if version is None or version.startswith("broken"):
            step = "pip install --force-reinstall penstock"
            found.append(Finding(name, "bad", version or "not installed", step))
    arrow = machine.packages.get("pyarrow") or ""
    if arrow[:1].isdigit() and not PYARROWS[0] <= _numbers(arrow) < PYARROWS[1]:
        found.append(Finding("pyarrow", "bad", arrow, "pip install 'pyarrow>=18,<20,!=19.0.0'"))
    return found or [Finding("packages", "ok", ", ".join(f"{name} {machine.packages[name]}" for name in NEEDED[2:]))]


def store_findings(store: Store, *, is_local: bool, cluster: bool) -> list[Finding]:
    """Tries what a checkpoint needs of its storage, in a folder of its own, and leaves nothing behind."""
    path = f"{PROBES}/{uuid4().hex}"
    what, url = "checkpoint storage", store.url
    try:
        store.create(path, b"penstock")
        try:
            store.create(path, b"another")
            twice = True
        except AlreadyExists:
            twice = False
        kept = store.read(path) == b"penstock" and any(entry.path == path for entry in store.list(PROBES))
        store.delete([path])
    except PenstockError as error:
        return [Finding(what, "bad", error.seen, error.next_step or "give the driver read and write access there")]
    if twice or not kept:
        seen = "a second create of one name succeeded" if twice else "a file that was created is not there"
        step = "use a local disk, NFS with hard links, or an object store with conditional put"
        return [Finding(what, "bad", f"{url}: {seen}", step)]
    found = [Finding(what, "ok", f"{url}: create-if-absent, read, list and delete work")]
    if is_local and cluster:
        step = "use a file system that all machines mount under this path, or an object store"
        found.append(Finding("checkpoint path", "unknown", f"{url} is a folder of this machine", step))
    return found


def executor_findings(driver: Machine, executors: Sequence[Machine]) -> list[Finding]:
    """How executors differ from the driver."""
    found: list[Finding] = []
    for machine in executors:
        found += _of_executor(driver, machine)
    if not found:
        places = len({machine.host for machine in executors})
        found.append(Finding("executors", "ok", f"on {places} hosts: Python and packages as on the driver"))
    return found


def _of_executor(driver: Machine, machine: Machine) -> list[Finding]:
    who, found = f"executor {machine.host}", list[Finding]()
    if _numbers(machine.python) != _numbers(driver.python):
        step = f"let PYSPARK_PYTHON name a Python {driver.python} there; functions are pickled between the two"
        found.append(Finding(who, "bad", f"Python {machine.python} ({machine.executable})", step))
    for name in dict.fromkeys((*NEEDED, *MUST_EQUAL)):
        here, there = driver.packages.get(name), machine.packages.get(name)
        if here is not None and there is None:
            step = f"pip install {name}=={here} there, or send an environment along with --archives"
            found.append(Finding(who, "bad", f"no package {name} in {machine.executable}", step))
        elif name in MUST_EQUAL and here != there and there is not None:
            step = f"install the driver's version there: pip install {name}=={here}"
            found.append(Finding(who, "bad", f"{name} {there}, and {here} on the driver", step))
    if machine.store is not None:
        step = "mount the folder under the same path on all machines, or use an object store that executors may read"
        found.append(Finding(who, "bad", f"cannot read the checkpoint's storage: {machine.store}", step))
    off_s = max(machine.asked_s - machine.clock_s, machine.clock_s - machine.answered_s, 0.0)
    if off_s > CLOCK_S_MAX:
        step = "let NTP set the clocks: processing time and ages of files come from them"
        found.append(Finding(who, "bad", f"its clock is off by {off_s:.1f} s at least", step))
    return found


def _numbers(version: str) -> tuple[int, int]:
    major, minor, *_ = (*version.split("."), "0", "0")
    return int(major), int(minor)
