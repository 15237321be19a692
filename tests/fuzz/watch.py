"""Whether anything outside of a folder was touched, by whatever code, and whether memory and time stayed bounded.

Two independent witnesses: the kernel tells (inotify) what was opened, changed or removed in the folders around, also by
C++ code and through links; Python's audit hook tells which paths were asked for, and what was run.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import stat
import struct
import sys
from pathlib import Path
from typing import TextIO

SECRET = "a-secret-that-nobody-may-copy"
MEMORY_BYTES_MAX = 400 << 20
_ADDRESS_SPACE_BYTES = 12 << 30

_IN_ACCESS, _IN_MODIFY, _IN_ATTRIB, _IN_OPEN = 0x1, 0x2, 0x4, 0x20
_IN_MOVED, _IN_CREATE, _IN_DELETE = 0xC0, 0x100, 0x200
_WATCHED = _IN_ACCESS | _IN_MODIFY | _IN_ATTRIB | _IN_OPEN | _IN_MOVED | _IN_CREATE | _IN_DELETE
_EVENT = struct.Struct("iIII")

_RUNS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pickle.find_class"}
_CHANGES = {"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.chown", "shutil.rmtree"}


class Outside:
    """Folders around the one under test, with files that look worth stealing."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.folders = (base / "outside", base / "outside" / "folder", base / "outside" / "manifests")
        for folder in self.folders:
            folder.mkdir(parents=True)
        self.files = tuple(folder / name for folder in self.folders for name in ("x", "0000000004.json"))
        for file in self.files:
            file.write_text(SECRET)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._events = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watches = {self._watch(folder): folder for folder in self.folders}

    def _watch(self, folder: Path) -> int:
        number: int = self._libc.inotify_add_watch(self._events, os.fsencode(folder), _WATCHED)
        assert number >= 0, f"{folder} cannot be watched"
        return number

    def touched(self) -> list[str]:
        """What happened there since the last question."""
        try:
            data = os.read(self._events, 1 << 16)
        except BlockingIOError:
            return []
        found, place = [], 0
        while place < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, place)
            name = data[place + _EVENT.size : place + _EVENT.size + length].rstrip(b"\0").decode()
            found.append(f"{self._watches.get(watch)}/{name} (inotify {mask:#x})")
            place += _EVENT.size + length
        return found

    def changed(self) -> list[str]:
        """Files that are not as they were: a second look at what the kernel has told."""
        there = sorted(path for path in (self.base / "outside").rglob("*") if path.is_file())
        if there != sorted(self.files):
            return [f"files are {there}"]
        changed = [str(file) for file in self.files if file.read_text() != SECRET]
        self.touched()
        return changed


class Audit:
    """What Python was asked to open, change and run. A hook cannot be taken away, so it is told when to listen."""

    def __init__(self, base: Path) -> None:
        self._base = os.path.realpath(base)
        self._case = f"{self._base}/case"
        self.listening = False
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[object, ...]) -> None:
        if not self.listening:
            return
        if event in _RUNS:
            self.seen.append(f"{event} {args!r}"[:300])
        elif event == "open":
            self._opened(*args)
        elif event in _CHANGES and isinstance(args[0], str | bytes | os.PathLike):
            self._changed(event, os.fsdecode(os.fspath(args[0])))

    def _opened(self, path: object, _mode: object, flags: object) -> None:
        if not isinstance(path, str | bytes | os.PathLike) or not isinstance(flags, int):
            return
        name = os.fsdecode(os.fspath(path))
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
        if not name.startswith("/"):
            # Beside a descriptor: one step down, and no link is followed.
            if "/" in name or name == ".." or not (flags & (os.O_NOFOLLOW | os.O_EXCL) or _is_rmtree()):
                self.seen.append(f"open {name!r} with flags {flags:#x}")
        elif name.startswith(self._base) and not self._within(name):
            self.seen.append(f"open {name!r}")
        elif writes and not self._within(name) and not name.startswith(("/dev/", "/proc/")):
            self.seen.append(f"open for writing {name!r}")

    def _changed(self, event: str, name: str) -> None:
        leads_out = not self._within(name) if name.startswith("/") else "/" in name or name == ".."
        if leads_out:
            self.seen.append(f"{event} {name!r}")

    def _within(self, name: str) -> bool:
        """The folder's own path may be reached; what the rest of it leads to is followed here, as the kernel would."""
        if self._is_plain(name):
            return True
        real = os.path.realpath(name)
        return real == self._case or real.startswith(f"{self._case}/")

    def _is_plain(self, name: str) -> bool:
        """Whether a path is below the folder and no link is on the way: to follow it costs as much as a case."""
        if not name.startswith(f"{self._case}/"):
            return False
        here = self._case
        for part in name[len(here) + 1 :].split("/"):
            here = f"{here}/{part}"
            try:
                if part == ".." or stat.S_ISLNK(os.lstat(here).st_mode):
                    return False
            except FileNotFoundError:
                return True
            except OSError:
                return False
        return True


def _is_rmtree() -> bool:
    """Removes folders that the caller has made itself; it compares what it opened with what it looked at."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_back is not None:
        if frame.f_code.co_name == "rmtree":
            return True
        frame = frame.f_back
    return False


def limit_memory() -> None:
    """So that a claim of a terabyte fails at once, and not by taking the machine's memory."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES, _ADDRESS_SPACE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def end_after(seconds: float, stacks: TextIO) -> None:
    """Ends this process unless it is called again in time, with the stacks of all threads in a file.

    Not by an exception: libraries catch those and go on.
    """
    faulthandler.dump_traceback_later(seconds, exit=True, file=stacks)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
