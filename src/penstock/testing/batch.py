"""What the feeds of the test runners offer: the rows of each source as Arrow data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.engine.cluster import OfferedBatch


@dataclass(frozen=True, slots=True)
class TablesBatch:
    """Tables or record batches, by the name of their source."""

    tables: Mapping[str, Any]
    planned_for: Mapping[str, int] = field(default_factory=dict)


def tables_of(batch: OfferedBatch) -> Mapping[str, Any]:
    """What is in a micro-batch that a feed of the test runners offered."""
    content = batch.content
    assert isinstance(content, TablesBatch)
    return content.tables
