"""Marks partitions of a Paimon table as done: a file ``_SUCCESS`` in the partition's folder.

The file is Paimon's own: JSON with ``creationTime`` and ``modificationTime`` in milliseconds; marking again changes the
second one only. The next snapshot of ours names the partitions, too, in its property ``penstock.done-partitions``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec

from penstock.sinks.listeners import CommitInfo, CommitListener, SinkTime
from penstock.sinks.paimon import private
from penstock.sinks.paimon.open import open_table
from penstock.sinks.partition_done import PartitionDone, decode_waiting, due, marked, touched

SUCCESS_FILE = "_SUCCESS"
PROPERTY = "penstock.done-partitions"


def _wall_ms() -> int:
    return int(time.time() * 1000)


class SuccessFile(msgspec.Struct, rename="camel"):
    """What Paimon's readers find in the file."""

    creation_time: int
    modification_time: int


class PartitionMarker(CommitListener):
    """Marks partitions while everything that was published is committed: none of their rows is still on its way."""

    name = "partition-done"

    def __init__(self, warehouse: str, table: str, rule: PartitionDone, wall_ms: Callable[[], int] = _wall_ms) -> None:
        self._warehouse, self._table, self._rule, self._wall_ms = warehouse, table, rule, wall_ms

    def on_commit(self, commit: CommitInfo, state: bytes) -> bytes:
        at_ms = commit.committed_at_ms if commit.committed_at_ms is not None else self._wall_ms()
        return msgspec.json.encode(touched(decode_waiting(state), commit.partitions, at_ms))

    def on_progress(self, time: SinkTime, state: bytes) -> bytes:
        waiting = decode_waiting(state)
        done = due(waiting, self._rule, watermark=time.watermark, now_ms=time.now_ms)
        if not done:
            return state
        table = open_table(self._warehouse, self._table)
        for partition in done:
            self._mark(table, partition)
        return msgspec.json.encode(marked(waiting, done))

    def properties(self, state: bytes) -> Mapping[str, str]:
        announce = decode_waiting(state).announce
        return {PROPERTY: ",".join(announce)} if announce else {}

    def _mark(self, table: private.Table, partition: str) -> None:
        path = private.absolute_in_table(table, f"{partition}/{SUCCESS_FILE}")
        now_ms = self._wall_ms()
        created_ms = now_ms
        if table.file_io.exists(path):
            try:
                created_ms = msgspec.json.decode(table.file_io.read_file_utf8(path), type=SuccessFile).creation_time
            except msgspec.DecodeError:
                created_ms = now_ms  # torn by a crash, or another engine's empty file: readers look for its name
        content = msgspec.json.encode(SuccessFile(created_ms, now_ms)).decode()
        table.file_io.overwrite_file_utf8(path, content)
