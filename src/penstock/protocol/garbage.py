"""File names, and which files nobody needs any more.

A name says for which checkpoint and generation the file was written. A file is garbage when no retained manifest
names it and no running epoch can still come to name it: only the current generation's next checkpoint can.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from penstock.protocol.ids import CheckpointId, Generation

_NAME = re.compile(r"/(?P<checkpoint>[0-9]{10})-g(?P<generation>[0-9]{1,10})-")


def file_path(
    folder: str,
    owner: str,
    *,
    checkpoint: CheckpointId,
    generation: Generation,
    subtask: int,
    attempt: str,
    sequence: int,
) -> str:
    """A name that no other attempt can choose: generation and Spark's task attempt id make it unique."""
    return f"{folder}/{owner}/{checkpoint:010d}-g{generation}-s{subtask}-a{attempt}-{sequence}.arrow"


def written_for(path: str) -> int:
    """The checkpoint whose epoch wrote a file; no older checkpoint names it. 0 for a name that we do not give."""
    match = _NAME.search(path)
    return 0 if match is None else int(match["checkpoint"])


def garbage(
    files: Iterable[str], needed: frozenset[str], *, generation: Generation, published: CheckpointId
) -> tuple[str, ...]:
    """Files to delete, given what retained manifests need and the newest published checkpoint."""
    return tuple(
        path for path in files if path not in needed and _settled(path, generation=generation, published=published)
    )


def _settled(path: str, *, generation: Generation, published: CheckpointId) -> bool:
    match = _NAME.search(path)
    if match is None:
        return False
    written_by = int(match["generation"])
    return written_by < generation or (written_by == generation and int(match["checkpoint"]) <= published)


def retired(checkpoints: Iterable[CheckpointId], retain: int) -> tuple[CheckpointId, ...]:
    """Checkpoints beyond the newest `retain`."""
    assert retain >= 1
    return tuple(sorted(checkpoints)[:-retain])
