"""Publishes a COMPACT snapshot on top of whatever is newest, however often commits get in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.sinks.paimon import local
from penstock.sinks.paimon.upkeep.files import KeptTable, ManifestMeta, Snapshot

TRIES = 50


@dataclass(frozen=True, slots=True)
class Content:
    """What a snapshot is made of. All that it names must be durable already."""

    base: list[ManifestMeta]
    delta: list[ManifestMeta] = field(default_factory=list)
    rows: int = 0


def publish(
    table: KeptTable,
    content_on: Callable[[Snapshot], Content | None],
    now_ms: Callable[[], int],
    discard: Callable[[], None],
) -> Snapshot | None:
    """Publishes what `content_on` makes of the newest snapshot; None when it says no, or others are always faster.

    `discard` is called if, for certain, nothing was published: it removes the files behind the content. When nobody
    can tell, they stay.
    """
    snapshot: Snapshot | None = None
    try:
        for _ in range(TRIES):
            with local.publishing(str(table.table.table_path)):
                latest = table.latest()
                content = None if latest is None else content_on(latest)
                if latest is None or content is None:
                    break
                snapshot = table.prepare_snapshot(latest, content.base, content.delta, now_ms(), content.rows)
                if table.publish(snapshot):
                    return snapshot
            _remove_lists(table, snapshot)
    except Exception:
        if snapshot is None or not table.holds(snapshot):
            discard()
            if snapshot is not None:
                _remove_lists(table, snapshot)
        raise
    discard()
    return None


def _remove_lists(table: KeptTable, snapshot: Snapshot) -> None:
    table.remove(table.manifest_path(name) for name in (snapshot.base_manifest_list, snapshot.delta_manifest_list))
