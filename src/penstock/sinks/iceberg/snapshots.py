"""Snapshots of an Iceberg table: which made it what it is, which files they list, and how one replaces files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyiceberg.manifest import DataFile

from penstock.sinks.iceberg.transaction import OneCopy


def lineage(table: Any) -> Iterator[Any]:
    """The snapshots that made the table what it is, newest first, up to where they expired."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        snapshot = by_id.get(snapshot.parent_snapshot_id)


def replace_files(
    table: Any,
    added: Sequence[DataFile],
    removed: Sequence[DataFile],
    facts: Mapping[str, str],
    marks: Mapping[str, str],
) -> None:
    """One snapshot behind the newest that was seen, with `facts` in its summary; `marks` become table properties.

    A snapshot adds files of one partition spec. Where the table got another one since some were written, these have a
    snapshot of their own before it, in the same commit.

    Raises: `CommitFailedException` when another snapshot came first.
    """
    transaction = OneCopy(table)
    newest = table.spec().spec_id
    for transaction.adds_to in sorted({file.spec_id for file in added} - {newest}):
        with transaction.update_snapshot().merge_append() as producer:
            for file in added:
                if file.spec_id == transaction.adds_to:
                    producer.append_data_file(file)
    transaction.adds_to = None
    update = transaction.update_snapshot(snapshot_properties=dict(facts))
    with update.overwrite() if removed else update.merge_append() as producer:
        for file in added:
            if file.spec_id == newest:
                producer.append_data_file(file)
        for file in removed:
            producer.delete_data_file(file)
    if marks:
        transaction.set_properties(dict(marks))  # last: the library asks for the metadata of each state before
    transaction.commit_transaction()


def manifests_of(io: Any, snapshots: Iterable[Any]) -> dict[str, Any]:
    """Manifests of snapshots, by their address."""
    return {manifest.manifest_path: manifest for snapshot in snapshots for manifest in snapshot.manifests(io)}


def files_in(io: Any, manifests: Iterable[Any]) -> set[str]:
    """Files that manifests list or take out."""
    entries = (entry for manifest in manifests for entry in manifest.fetch_manifest_entry(io, discard_deleted=False))
    return {entry.data_file.file_path for entry in entries}


def files_of(io: Any, snapshots: Iterable[Any]) -> set[str]:
    return files_in(io, manifests_of(io, snapshots).values())
