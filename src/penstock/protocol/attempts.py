"""Which attempts at a subtask lost, so that the table files they announced can be removed.

An attempt announces each table file before it makes it. When its checkpoint is published, the driver drops the
announcements of winners. The others name files of losers: failed, killed, speculative or zombie attempts. None of them
is in any manifest, so none of them was or will be given to a commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.layout import read_announcement

REMEMBERED = 100
"""Checkpoints for which winners are remembered. A list that turns up later than that is only forgotten: a storage that
lists late must never make a winner look like a loser."""


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
    winners: Mapping[CheckpointId, frozenset[str]],
) -> Verdict:
    """Sorts the announcements that were found.

    `taken_over` is this driver's first checkpoint, `owners` tells which driver published the retained ones before it.
    An older driver's attempts at a checkpoint that it did not publish can never count. Its attempts at one that it did
    publish may have won, and what they wrote may be in the table. That cannot be decided here, so their files stay;
    orphan cleanup decides by the table. This driver's own are decided once their checkpoint is published; `winners` are
    its own of the last `REMEMBERED` checkpoints.
    """
    forget: list[str] = []
    lost: list[str] = []
    for path in paths:
        announcement = read_announcement(path)
        if announcement is None:
            continue
        by = announcement.by
        if by.generation < generation:
            published_it = by.checkpoint < taken_over and owners.get(by.checkpoint, by.generation) == by.generation
            (forget if published_it else lost).append(path)
        elif by.generation == generation and by.checkpoint <= published:
            won = by.checkpoint <= published - REMEMBERED or by.attempt in winners.get(by.checkpoint, ())
            (forget if won else lost).append(path)
    return Verdict(tuple(forget), tuple(lost))


def remembered(
    winners: Mapping[CheckpointId, frozenset[str]], published: CheckpointId
) -> dict[CheckpointId, frozenset[str]]:
    """Without winners of checkpoints that are too old to be judged."""
    return {checkpoint: attempts for checkpoint, attempts in winners.items() if checkpoint > published - REMEMBERED}
