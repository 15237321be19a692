"""Two readers of tables with a primary key: pypaimon's own, and one that merges the listed files with Polars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pypaimon.common.options.core_options import CoreOptions

from penstock.sinks.paimon.kinds import Kind
from penstock.sinks.paimon.open import open_table
from penstock.sinks.paimon.read import listed_files, read_table
from penstock.sinks.paimon.sink import Paimon

Row = dict[str, Any]


def merged_by_pypaimon(sink: Paimon) -> list[Row]:
    """Rows of a first-row table are shown before they are compacted, too: that is what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CoreOptions, "batch_scan_skip_level0", lambda _: False)
        return read_table(sink.warehouse, sink.table).to_pylist()


def merged_by_polars(sink: Paimon) -> list[Row]:
    """The listed files sorted by sequence number, then one row per key; nothing of pypaimon's reader is used."""
    kind = Kind.of(open_table(sink.warehouse, sink.table))
    names = set(listed_files(sink.warehouse, sink.table))
    paths = sorted(path for path in Path(sink.warehouse).rglob("*.parquet") if path.name in names)
    assert len(paths) == len(names)
    rows = pl.concat([pl.read_parquet(path, hive_partitioning=False) for path in paths]).sort("_SEQUENCE_NUMBER")
    keys, values = list(kind.primary_key), [name for name in kind.columns.names if name not in kind.primary_key]
    by_key = rows.group_by(keys, maintain_order=True)
    match kind.merge_engine:
        case "deduplicate":
            merged = by_key.last().filter(pl.col("_VALUE_KIND").is_in([0, 2]))
        case "first-row":
            merged = by_key.first()
        case _:
            sums = [name for name in values if kind.options.get(f"fields.{name}.aggregate-function") == "sum"]
            last = [pl.col(name).drop_nulls().last() for name in values if name not in sums]
            empty = [pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).alias(name) for name in sums]
            merged = by_key.agg(*last, *empty)
    return merged.select(kind.columns.names).to_dicts()
