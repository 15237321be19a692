"""Entries of a Delta table's log, read one by one: who made them, and which were undone by a later ``RESTORE``.

Entries are immutable, so each is read once. The library's own history lists and reads the log anew for every question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from penstock.sinks.parquet.files import TableFolder

KEPT_MAX = 256
"""Entries that are remembered; a commit asks for the newest few."""
_PLAIN = "!$&'()+,/:;=@"
"""Signs that deltalake does not encode in paths, beside letters and digits."""


def file_name(path: str) -> str:
    """What a file is called below the table's folder; `path` is as the log spells it, encoded like a URL."""
    return unquote(path)


def can_take_out(path: str) -> bool:
    """Whether an entry that takes this file out spells its path as the log does: deltalake encodes it by itself.

    >>> can_take_out("day=%25C3%25A4/a.parquet"), can_take_out("day=ä/a.parquet")
    (True, False)
    """
    return quote(file_name(path), safe=_PLAIN) == path


class _Line(msgspec.Struct):
    commitInfo: dict[str, Any] | None = None  # noqa: N815 - as the log spells it


_lines = msgspec.json.Decoder(_Line)


class DeltaLog:
    """The entries of one table."""

    def __init__(self, folder: TableFolder) -> None:
        self._folder = folder
        self._kept: dict[int, Mapping[str, Any] | None] = {}

    def entry(self, version: int) -> Mapping[str, Any] | None:
        """What an entry says of itself; None where the log was cleaned up."""
        if version not in self._kept:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            content = self._folder.read(_name(version))
            self._kept[version] = None if content is None else _info(content)
        return self._kept[version]

    def lineage(self, newest: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """The entries that made the table what it is, newest first, up to where the log was cleaned up.

        A ``RESTORE`` makes the table what it was at an older version: the entries between are not part of it.
        """
        for version, info, _ in self._walk(newest):
            yield version, info

    def undone(self, newest: int) -> Iterator[Mapping[str, Any]]:
        """The entries that a ``RESTORE`` took away, newest first, as far as the log goes back."""
        for version, _, below in self._walk(newest):
            for gone in range(version - 1, below, -1):
                yield self.entry(gone) or {}

    def _walk(self, newest: int) -> Iterator[tuple[int, Mapping[str, Any], int]]:
        """Version and content of the entries that count, each with the version that it was made of."""
        version = newest
        while version >= 0:
            info = self.entry(version)
            if info is None:
                return
            target = self._restored(version, info)
            below = version - 1 if target is None else min(target, version - 1)
            yield version, info, below
            version = below

    def _restored(self, version: int, info: Mapping[str, Any]) -> int | None:
        """Which version an entry restored, named by its number or by a time."""
        if info.get("operation") != "RESTORE":
            return None
        parameters = info.get("operationParameters") or {}
        if parameters.get("version") not in {None, ""}:
            return int(parameters["version"])
        until = parameters.get("datetime") or parameters.get("timestamp")
        if until is None or not str(until).isdigit():
            return None
        for older in range(version - 1, -1, -1):
            if self._made_at_ms(older) <= int(until):
                return older
        return None

    def _made_at_ms(self, version: int) -> int:
        """When a version was made, as Delta Lake sees it: what its entry says in a table with such times, else when
        the entry's file was written. The writer's own time in the entry is a little older. It stands in where no file
        system tells. 0 where the log was cleaned up."""
        info = self.entry(version)
        if info is None:
            return 0
        if "inCommitTimestamp" in info:
            return int(info["inCommitTimestamp"])
        written = self._folder.made_at_ms(_name(version))
        return int(info.get("timestamp", 0)) if written is None else written


def _name(version: int) -> str:
    return f"_delta_log/{version:020}.json"


def _info(content: bytes) -> Mapping[str, Any]:
    """Where an entry has no commit info, as some writers leave it out, nothing is known of it."""
    for line in content.splitlines():
        if b'"commitInfo"' in line:
            found = _lines.decode(line).commitInfo
            if found is not None:
                return found
    return {}
