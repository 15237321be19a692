"""Which options of a table are honoured, which are somebody else's, and why all others are refused.

An option that Penstock does not know may change what files mean, or promise something that nobody does. So the list
names what is allowed. `kinds.py` judges values of options that decide about the kind of a table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.errors import TableRefused

_HONOURED = """
    bucket bucket-key bucket-function.type primary-key partition path type merge-engine ignore-delete
    first-row.ignore-delete deduplicate.ignore-delete partial-update.ignore-delete rowkind.field sequence.field
    sequence.field.sort-order file.format file.compression file.compression.zstd-level target-file-size
    write-buffer-size data-file.prefix manifest.format manifest.target-file-size manifest.compression
    metadata.stats-mode metadata.stats-mode.per.level metadata.stats-dense-store metadata.stats-keep-first-n-columns
    parquet.write-page-index.enabled partition.default-name partition.legacy-name partition.sink-strategy
    num-sorted-run.compaction-trigger num-levels compaction.max-size-amplification-percent compaction.size-ratio
    snapshot.num-retained.min snapshot.num-retained.max snapshot.time-retained write-only auto-create
"""
"""By the writer, the committer or upkeep. Values that cannot be honoured are refused by `kinds.py`."""

_JUDGED = """
    changelog-producer deletion-vectors.enabled primary-key.nullable data-file.thin-mode sequence.snapshot-ordering
    pk-clustering-override file.format.per.level data-evolution.enabled target-file-row-num data-file.external-paths
    data-file.path-directory row-tracking.enabled
"""
"""Looked at by `kinds.py`, which refuses what is not the default."""

_NOT_OURS = """
    async-file-write batch-scan-mode bucket-append-ordered stream-scan-mode branch cache-page-size
    compaction.min.file-num compaction.max.file-num file-index.read.enabled file-operation.thread-num
    file-reader-async-threshold file.block-size force-lookup local-merge-buffer-size manifest.merge-min-count
    manifest.delete-file-drop-stats
    manifest.full-compaction-threshold-size num-sorted-run.stop-trigger page-size snapshot.clean-empty-directories
    snapshot.expire.execution-mode snapshot.expire.limit snapshot.ignore-empty-commit sort-engine
    sort-spill-buffer-size sort-spill-threshold spill-compression spill-compression.zstd-level
    streaming-read-append-overwrite streaming-read-overwrite write-buffer-for-append write-buffer-spillable
    write-buffer-spill.max-disk-size write-max-writers-to-spill write.batch-memory write.batch-size
    tag.default-time-retained tag.time-expire-enabled disable-explicit-type-casting dynamic-partition-overwrite
    alter-column-null-to-not-null.disabled add-column-before-partition parquet.enable.dictionary owner comment
"""
_NOT_OURS_PREFIXES = (
    "scan.", "consumer", "read.", "lookup", "source.split.", "continuous.", "incremental-", "streaming.read.",
    "table-read.", "commit.max-retr", "commit.min-retr", "commit.timeout", "commit.user-prefix", "dynamic-bucket.",
    "cross-partition-upsert.", "postpone.", "materialized-table.", "local-sort.", "sort-compaction.", "zorder.",
    "compaction.offpeak", "changelog.num-retained.", "changelog.time-retained", "changelog-file.", "penstock.",
)  # fmt: skip
"""About reading, or about how another engine works: nothing that this sink writes depends on them."""

_NAMES = frozenset(f"{_HONOURED} {_JUDGED} {_NOT_OURS}".split())

_FIELD_PREFIX = "fields."

_REASONS: Mapping[str, str] = {
    "metadata.iceberg.": "Iceberg metadata is written by Paimon's Java committer only; nobody would keep it up to date",
    "tag.": "no tag would be made: tags are created by Paimon's Java committer",
    "partition.expiration": "no partition would expire: that is done by Paimon's Java committer",
    "partition.mark-done": "no such action would run: give partition_done=pen.PartitionDone() to mark partitions",
    "partition.idle-time-to-report": "no such report would be made",
    "partition.timestamp-": "no partition would expire or be marked by its time",
    "partition.end-input-to-done": "no such mark would be made: give partition_done=pen.PartitionDone()",
    "record-level.": "no row would expire: files are rewritten without looking at the age of rows",
    "commit.callbacks": "a Java class cannot be called from here: use a commit listener",
    "commit.": "pypaimon's commit does not do that",
    "tag.callbacks": "a Java class cannot be called from here",
    "metastore.": "partitions and tags would not be registered in the metastore",
    "file-index.": "pypaimon writes no file indexes, and readers would look for them",
    "full-compaction.delta-commits": "upkeep merges runs by their sizes, not after a number of commits",
    "compaction.": "upkeep merges runs by count and size only",
    "clustering.": "rows are written in the order of their arrival",
    "file.compression.per.level": "all levels are compressed alike",
    "file.suffix.include.compression": "upkeep would take such files for foreign ones",
    "delete.force-produce-changelog": "no changelog is written",
    "chain-table.": "chained tables are read by Paimon's Java engines only",
    "blob": "blobs are not written",
    "query-auth.": "rights are checked by the catalog's own readers; this sink would go around them",
}


def check_options(options: Mapping[str, str], ignored: Collection[str] = ()) -> None:
    """Raises: `TableRefused` for an option that would be ignored; those in `ignored` may be."""
    unknown = [name for name in options if not _known(name) and name not in ignored]
    if unknown:
        name = unknown[0]
        more = f" and {len(unknown) - 1} more: {', '.join(unknown[1:])}" if unknown[1:] else ""
        raise TableRefused(
            f"a table with the option {name} = {options[name]}{more}",
            cause=reason_of(name),
            next_step=f"leave the option out (ALTER TABLE ... RESET), or accept that: ignore_options=[{name!r}]",
            option=name,
        )


def reason_of(name: str) -> str:
    """Why an option is refused: the reason of the longest known beginning of its name."""
    found = [prefix for prefix in _REASONS if name.startswith(prefix)]
    return _REASONS[max(found, key=len)] if found else "the sink does not know this option, and would ignore it"


def _known(name: str) -> bool:
    if name.startswith(_FIELD_PREFIX):
        return True  # pypaimon judges them by the merge engine, `stats.py` by their mode
    return name in _NAMES or name.startswith(_NOT_OURS_PREFIXES)
