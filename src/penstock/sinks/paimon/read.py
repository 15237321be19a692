"""Reads a Paimon table back, for demos, audits and tests."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

from penstock.sinks.paimon import private
from penstock.sinks.paimon.local import as_local
from penstock.sinks.paimon.open import open_table


def newest_snapshot(warehouse: str, table: str) -> int | None:
    """The number of the newest snapshot; None for an empty table."""
    handle = open_table(as_local(warehouse) or warehouse, table)
    latest = private.TableFiles(handle, commit_user="", publish=lambda _: False).latest()
    return None if latest is None else int(latest.id)


def read_table(warehouse: str, table: str, snapshot: int | None = None) -> pa.Table:
    """All rows of one snapshot, the newest unless named, in no particular order."""
    handle = open_table(as_local(warehouse) or warehouse, table)
    if snapshot is not None:
        handle = handle.copy({"scan.snapshot-id": str(snapshot)})
    builder = handle.new_read_builder()
    return builder.new_read().to_arrow(builder.new_scan().plan().splits())


def listed_files(warehouse: str, table: str, snapshot: int | None = None) -> list[str]:
    """The data files of one snapshot, the newest unless named; one that was added twice is there twice."""
    handle = open_table(as_local(warehouse) or warehouse, table)
    files = private.TableFiles(handle, commit_user="", publish=lambda _: False)
    latest = files.latest() if snapshot is None else files.snapshot(snapshot)
    counts: Counter[str] = Counter()
    for entry in files.entries(latest) if latest is not None else ():
        counts[entry.file.file_name] += 1 if entry.kind == 0 else -1
    return sorted(counts.elements())
