"""Marks partitions of a table as done: a file ``_SUCCESS`` in the partition's folder.

The next commit names the partitions, too, in its property ``penstock.done-partitions``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec

from penstock.sinks.listeners import CommitInfo, CommitListener, SinkTime
from penstock.sinks.parquet.remote import open_folder
from penstock.sinks.partition_done import PartitionDone, decode_waiting, due, marked, touched

SUCCESS_FILE = "_SUCCESS"
PROPERTY = "penstock.done-partitions"


def _wall_ms() -> int:
    return int(time.time() * 1000)


class FolderMarker(CommitListener):
    """Marks partitions while everything that was published is committed: none of their rows is still on its way."""

    name = "partition-done"

    def __init__(self, uri: str, rule: PartitionDone, wall_ms: Callable[[], int] = _wall_ms) -> None:
        self._uri, self._rule, self._wall_ms = uri, rule, wall_ms

    def on_commit(self, commit: CommitInfo, state: bytes) -> bytes:
        at_ms = commit.committed_at_ms if commit.committed_at_ms is not None else self._wall_ms()
        return msgspec.json.encode(touched(decode_waiting(state), commit.partitions, at_ms))

    def on_progress(self, time: SinkTime, state: bytes) -> bytes:
        waiting = decode_waiting(state)
        done = due(waiting, self._rule, watermark=time.watermark, now_ms=time.now_ms)
        if not done:
            return state
        folder = open_folder(self._uri)
        for partition in done:
            name = f"{partition}/{SUCCESS_FILE}"
            folder.remove(name)  # it was marked before, and got rows since
            with folder.create(name) as file:
                file.write(msgspec.json.encode({"modificationTime": self._wall_ms()}))
        return msgspec.json.encode(marked(waiting, done))

    def properties(self, state: bytes) -> Mapping[str, str]:
        announce = decode_waiting(state).announce
        return {PROPERTY: ",".join(announce)} if announce else {}
