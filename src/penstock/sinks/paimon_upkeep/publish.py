"""Publishes a COMPACT snapshot on top of whatever is newest, however often commits get in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.sinks.paimon_upkeep.files import KeptTable, ManifestMeta, Snapshot

TRIES = 50


@dataclass(frozen=True, slots=True)
class Content:
    """What a snapshot is made of; `written` are the new files behind it, to be made durable."""

    base: list[ManifestMeta]
    delta: list[ManifestMeta] = field(default_factory=list)
    written: tuple[Path, ...] = ()


def publish(
    table: KeptTable, content_on: Callable[[Snapshot], Content | None], now_ms: Callable[[], int]
) -> Snapshot | None:
    """Publishes what `content_on` makes of the newest snapshot; None when it says no, or others are always faster.

    None means that nothing was published, for certain. After an exception nobody knows: then no file may be removed.
    """
    for _ in range(TRIES):
        latest = table.latest()
        content = None if latest is None else content_on(latest)
        if latest is None or content is None:
            return None
        snapshot = table.prepare_snapshot(latest, content.base, content.delta, now_ms())
        if table.publish(snapshot, content.written):
            return snapshot
        table.remove(table.manifest_path(n) for n in (snapshot.base_manifest_list, snapshot.delta_manifest_list))
    return None
