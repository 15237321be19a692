"""How long readers outside of the query keep the files of a checkpoint: long enough to read, never for ever.

A reader leaves a small file, its *lease*, and a new one before that runs out. The collector alone decides how long a
lease counts, by its own clock from the moment at which it first saw it: no clock of a reader is believed. However many
leases there are, they hold few checkpoints, and each for a bounded time, so that reading cannot fill the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.protocol.ids import CheckpointId
from penstock.protocol.layout import read_lease

LEASE_S = 120.0
"""A reader that died is forgotten after this."""
RENEW_S = 40.0
"""A third of it: a renewal that fails can be tried again."""
HELD_S_MAX = 3600.0
"""For one checkpoint, however often its lease is renewed."""
HELD_MAX = 8
"""Checkpoints that are held at the same time; those that were held first go first in line."""
STALE_S = 86_400
"""By the clock of readers. A folder without a driver has no collector; the next reader removes leases of yesterday."""


@dataclass(frozen=True, slots=True)
class Leases:
    """What the collector knows of readers; times by its own clock."""

    seen: Mapping[str, float] = field(default_factory=dict)
    """When each lease was first seen."""
    since: Mapping[CheckpointId, float] = field(default_factory=dict)
    """Since when each checkpoint is wanted."""
    held: frozenset[CheckpointId] = frozenset()
    """Whose files stay."""
    over: tuple[str, ...] = ()
    """Leases that have run out."""


def looked(known: Leases, paths: Iterable[str], now_s: float) -> Leases:
    """What is known after a look at the leases that are there.

    >>> first = looked(Leases(), ["readers/0000000042-1800000000-00c0ffee00c0ffee.lease"], 5.0)
    >>> sorted(first.held), sorted(looked(first, first.seen, 5.0 + LEASE_S).held)
    ([42], [])
    """
    leases = {path: lease for path in paths if (lease := read_lease(path)) is not None}
    seen = {path: known.seen.get(path, now_s) for path in leases}
    over = tuple(path for path, first_s in seen.items() if now_s - first_s >= LEASE_S)
    wanted = {lease.checkpoint for path, lease in leases.items() if now_s - seen[path] < LEASE_S}
    since = {checkpoint: known.since.get(checkpoint, now_s) for checkpoint in wanted}
    in_time = sorted((begun_s, checkpoint) for checkpoint, begun_s in since.items() if now_s - begun_s < HELD_S_MAX)
    return Leases(seen, since, frozenset(checkpoint for _, checkpoint in in_time[:HELD_MAX]), over)


def stale(paths: Iterable[str], clock_s: float) -> tuple[str, ...]:
    """Leases that no reader can still need, by the clocks of readers."""
    leases = ((path, read_lease(path)) for path in paths)
    return tuple(path for path, lease in leases if lease is not None and lease.taken < clock_s - STALE_S)
