"""Logs for people in an object store, which cannot append: a log is kept here as a whole and written as a whole.

The first line of a log is written at once: most lists of an attempt have one only. Later lines are written together,
soon after, so that an event costs its epoch nothing. Best effort: a process that is killed loses the lines of the last
moment, and of two drivers on one log the one that writes last wins.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import PenstockError
from penstock.store.base import AlreadyExists

_log = logging.getLogger(__name__)

FLUSH_S = 1.0
_LOGS_MAX = 64
"""Attempts come and go; a log that is written to again after so many others is read back."""


@dataclass(slots=True)
class _Lines:
    data: bytearray
    written: int


class LineLogs:
    """The logs that this process appends to."""

    def __init__(
        self,
        create: Callable[[str, bytes], None],
        overwrite: Callable[[str, bytes], None],
        read: Callable[[str], bytes],
    ) -> None:
        self._create, self._overwrite, self._read = create, overwrite, read
        self._logs: OrderedDict[str, _Lines] = OrderedDict()
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # taken before the other one; a log's older bytes never follow its newer ones
        self._timer: threading.Timer | None = None
        self._closed = False

    def append(self, path: str, line: bytes) -> int:
        """How long the log is now, 0 if the line could not be written."""
        line = line if line.endswith(b"\n") else line + b"\n"
        try:
            length = self._add(path, line) or self._begin(path, line)
        except PenstockError as error:
            _log.warning("a line was not added to %s: %s", path, error)
            return 0
        if self._closed:
            self.flush()
        return length

    def content(self, path: str) -> bytes | None:
        """What was appended to a log here, written or not; None for one that is not known."""
        with self._lock:
            log = self._logs.get(path)
            return None if log is None else bytes(log.data)

    def forget(self, path: str) -> None:
        """Before the object is deleted: nothing is written to it any more."""
        with self._lock:
            if path not in self._logs:
                return
        with self._writing, self._lock:
            self._logs.pop(path, None)

    def flush(self) -> None:
        """Writes what is not written yet; what cannot be written is tried again with the next line."""
        with self._writing:
            with self._lock:
                self._timer = None
                due = [(path, bytes(log.data)) for path, log in self._logs.items() if log.written < len(log.data)]
            for path, data in due:
                try:
                    self._overwrite(path, data)
                except PenstockError as error:
                    _log.warning("lines were not added to %s: %s", path, error)
                else:
                    self._note_written(path, len(data))

    def close(self) -> None:
        """The process is ending: writes what is not written yet, and each further line at once."""
        self._closed = True
        self.flush()

    def _add(self, path: str, line: bytes) -> int:
        """How long the log is now, 0 if it is not known here."""
        with self._lock:
            log = self._logs.get(path)
            if log is None:
                return 0
            log.data += line
            if not self._closed:
                self._flush_soon()
            return len(log.data)

    def _begin(self, path: str, line: bytes) -> int:
        with self._writing:
            data = line
            try:
                self._create(path, data)
            except AlreadyExists:
                if length := self._add(path, line):  # another thread was faster
                    return length
                data = self._read(path) + line
                self._overwrite(path, data)
            with self._lock:
                self._logs[path] = _Lines(bytearray(data), len(data))
                for old in [old for old, log in self._logs.items() if log.written == len(log.data)][:-_LOGS_MAX]:
                    del self._logs[old]
            return len(data)

    def _note_written(self, path: str, length: int) -> None:
        with self._lock:
            if path in self._logs:
                self._logs[path].written = length

    def _flush_soon(self) -> None:
        if self._timer is not None:
            return
        timer = threading.Timer(FLUSH_S, self.flush)
        timer.name = "line-logs"
        timer.daemon = True
        try:
            timer.start()
        except RuntimeError:
            return  # there are too many threads, or the process is ending: the next line tries again, `close` is left
        self._timer = timer
