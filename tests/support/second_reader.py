"""Reads a Paimon append table without pypaimon: Avro manifests by fastavro, data files by Polars."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import fastavro
import polars as pl

from penstock.sinks.paimon.sink import Paimon


def root_of(sink: Paimon) -> Path:
    database, table = sink.table.split(".")
    return Path(sink.warehouse, f"{database}.db", table)


def snapshots_of(sink: Paimon) -> list[int]:
    return sorted(int(path.name.partition("-")[2]) for path in (root_of(sink) / "snapshot").glob("snapshot-*"))


def snapshot_json(sink: Paimon, number: int) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((root_of(sink) / "snapshot" / f"snapshot-{number}").read_text())
    return content


def files_of(sink: Paimon, snapshot: dict[str, Any]) -> list[Path]:
    """The data files of a snapshot or tag; fails if one is listed twice, removed twice, or not there."""
    root = root_of(sink)
    counts: Counter[str] = Counter()
    for name in (snapshot["baseManifestList"], snapshot["deltaManifestList"]):
        for manifest in _avro(root / "manifest" / name):
            for entry in _avro(root / "manifest" / manifest["_FILE_NAME"]):
                counts[entry["_FILE"]["_FILE_NAME"]] += 1 if entry["_KIND"] == 0 else -1
    assert set(counts.values()) <= {0, 1}, f"listed or removed twice: {counts}"
    paths = {path.name: path for path in root.rglob("*.parquet")}
    return [paths[name] for name, count in sorted(counts.items()) if count]


def ids_at(sink: Paimon, snapshot: dict[str, Any]) -> Counter[int]:
    files = files_of(sink, snapshot)
    ids = Counter(number for path in files for number in pl.read_parquet(path)["id"].to_list())
    assert sum(ids.values()) == snapshot["totalRecordCount"]
    return ids


def _avro(path: Path) -> list[Any]:
    with path.open("rb") as file:
        return list(fastavro.reader(file))
