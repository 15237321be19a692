"""Reads a Paimon table back, for demos, audits and tests."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

from penstock.sinks import paimon_private as private
from penstock.sinks.paimon_local import as_local
from penstock.sinks.paimon_open import open_table


def read_table(warehouse: str, table: str) -> pa.Table:
    """All rows of the newest snapshot, in no particular order."""
    builder = open_table(as_local(warehouse) or warehouse, table).new_read_builder()
    return builder.new_read().to_arrow(builder.new_scan().plan().splits())


def listed_files(warehouse: str, table: str) -> list[str]:
    """The data files of the newest snapshot; one that was added twice is there twice."""
    handle = open_table(as_local(warehouse) or warehouse, table)
    files = private.TableFiles(handle, commit_user="", publish=lambda _: False)
    latest = files.latest()
    counts: Counter[str] = Counter()
    for entry in files.entries(latest) if latest is not None else ():
        counts[entry.file.file_name] += 1 if entry.kind == 0 else -1
    return sorted(counts.elements())
