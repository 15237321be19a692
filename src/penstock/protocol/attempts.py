"""Which attempts at a subtask lost, so that the table files they announced can be removed.

An attempt announces each table file before it makes it. When its checkpoint is published, the announcements of the
winners are forgotten, and everybody else's are files of losers: failed, killed, speculative or zombie attempts. None of
them is in any manifest, so none of them was or will be given to a commit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.protocol.ids import CheckpointId, Generation

FOLDER = "attempts"
REMEMBERED = 100
"""Checkpoints for which winners are remembered. A list that turns up later than that is only forgotten: a storage that
lists late must never make a winner look like a loser."""
_NAME = re.compile(r"/(?P<checkpoint>[0-9]{10})-g(?P<generation>[0-9]{1,10})-s[0-9]+-a(?P<attempt>[^/]+)\.txt$")


def attempt_path(sink: str, *, checkpoint: CheckpointId, generation: Generation, subtask: int, attempt: str) -> str:
    """Where one attempt announces its files for one sink."""
    return f"{FOLDER}/{sink}/{checkpoint:010d}-g{generation}-s{subtask}-a{attempt}.txt"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`forget`: announcements that mean nothing any more; `lost`: those whose files are to be removed first."""

    forget: tuple[str, ...]
    lost: tuple[str, ...]


def judge_attempts(
    paths: Iterable[str],
    *,
    generation: Generation,
    taken_over: CheckpointId,
    owners: Mapping[CheckpointId, Generation],
    published: CheckpointId,
    winners: frozenset[tuple[CheckpointId, str]],
) -> Verdict:
    """Sorts the announcements that were found.

    `taken_over` is this driver's first checkpoint, `owners` tells which driver published the retained ones before it.
    An older driver's attempts at a checkpoint that it did not publish can never count. Its attempts at one that it did
    publish may have won, and what they wrote may be in the table: nobody can tell here, so their files stay (orphan
    cleanup judges by the table). This driver's own are settled once their checkpoint is published; `winners` are its
    own of the last `REMEMBERED` checkpoints.
    """
    forget: list[str] = []
    lost: list[str] = []
    for path in paths:
        match = _NAME.search(path)
        if match is None:
            continue
        checkpoint, by = CheckpointId(int(match["checkpoint"])), int(match["generation"])
        if by < generation:
            published_it = checkpoint < taken_over and owners.get(checkpoint, by) == by
            (forget if published_it else lost).append(path)
        elif by == generation and checkpoint <= published:
            won = checkpoint <= published - REMEMBERED or (checkpoint, match["attempt"]) in winners
            (forget if won else lost).append(path)
    return Verdict(tuple(forget), tuple(lost))


def remembered(
    winners: frozenset[tuple[CheckpointId, str]], published: CheckpointId
) -> frozenset[tuple[CheckpointId, str]]:
    """Without winners of checkpoints that are too old to be judged."""
    return frozenset(winner for winner in winners if winner[0] > published - REMEMBERED)
