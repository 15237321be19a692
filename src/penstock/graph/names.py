"""Names of sources, operators, sinks and edges: what they may be, and how missing ones are made.

A name is a key of the checkpoint's manifest and a folder in the checkpoint. Two things with one name would read each
other's rows, so names are unique by construction here, and `graph.Pipeline` checks the finished graph once more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from penstock.errors import PipelineError

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,80}")
_TEMPORARY = ".tmp-"
"""Stores take files in such folders for half-written ones."""
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)
"""Windows opens a device under these names, whatever stands behind a dot."""


def check_name(name: object) -> str:
    """Raises: `PipelineError` for what cannot be a folder in a checkpoint."""
    if isinstance(name, str) and _NAME.fullmatch(name) and name not in {".", ".."} and not name.startswith(_TEMPORARY):
        return name
    raise PipelineError(
        f"{name!r} is not a name",
        cause="names become folders in the checkpoint",
        next_step="use letters, digits, '_', '-' and '.', at most 80, and begin with a letter or a digit",
    )


def edge_names(ends: Sequence[tuple[str, str]]) -> list[str]:
    """The name of each edge, given its producer and its consumer, in the order in which edges were made.

    The second edge between the same two ends gets a number. That may be the name of an edge to another stage, which has
    a number of its own: then the later edge counts on. Names that no other edge wants are never changed, so that
    checkpoints go on to fit.

    >>> edge_names([("map", "union"), ("map", "union"), ("map", "union-2")])
    ['map-to-union', 'map-to-union-2', 'map-to-union-2-2']
    """
    wanted = _numbered_by_consumer(ends)
    reserved, taken = set(wanted), set[str]()
    names = []
    for name in wanted:
        unique = name if name not in taken else _counted_on(name, reserved | taken)
        taken.add(unique)
        names.append(unique)
    return names


def _numbered_by_consumer(ends: Sequence[tuple[str, str]]) -> list[str]:
    """What edges are called as far as each consumer knows."""
    taken: set[tuple[str, str]] = set()
    names = []
    for producer, consumer in ends:
        base = name = f"{producer}-to-{consumer}"
        count = 1
        while (consumer, name) in taken:
            count += 1
            name = f"{base}-{count}"
        taken.add((consumer, name))
        names.append(name)
    return names


def _counted_on(name: str, taken: set[str]) -> str:
    count = 2
    while f"{name}-{count}" in taken:
        count += 1
    return f"{name}-{count}"


def unused_name(name: str, taken: Collection[str]) -> str:
    """The name, with a number if it is taken."""
    return name if name not in taken else _counted_on(name, set(taken))


def require_distinct(what: str, names: Iterable[str]) -> None:
    """Raises: `PipelineError` if two of them are equal."""
    doubled = sorted(name for name, count in Counter(names).items() if count > 1)
    if doubled:
        raise PipelineError(
            f"several {what} have the name {', '.join(map(repr, doubled))}",
            cause="names identify everything in the checkpoint: rows and state of one would reach the other",
            next_step="give operators, sources and sinks names of their own with name=",
        )


def require_portable(names: Iterable[str]) -> None:
    """For a new checkpoint: its names must be folders of their own on every file system it may be copied to.

    Raises: `PipelineError` for names that differ in upper and lower case alone, that begin or end with a dot, or that
    are devices on Windows. Checkpoints that have such names already are not refused.
    """
    by_folded: dict[str, str] = {}
    for name in names:
        if any(part.startswith(".") or part.endswith(".") or _DEVICES.fullmatch(part) for part in name.split("/")):
            raise _not_portable(f"the name {name!r}")
        other = by_folded.setdefault(name.casefold(), name)
        if other != name:
            raise _not_portable(f"the names {other!r} and {name!r}, which differ only in upper and lower case")


def _not_portable(seen: str) -> PipelineError:
    return PipelineError(
        seen,
        cause="names become folders in the checkpoint, and some file systems have no such folders, or take two for one",
        next_step="give another name with name=: other letters, no dot at its beginning or end",
    )
