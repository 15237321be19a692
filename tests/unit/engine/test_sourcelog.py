"""Spark's offset and commit logs: what of them belongs to a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext

import msgspec
import pytest

from penstock.engine.sourcelog import all_committed, bring_source, read_tail, rewind_source, rewrite_source
from penstock.errors import MissingFile
from penstock.protocol.ids import BatchId
from penstock.protocol.layout import offsets_path
from penstock.protocol.manifest import SourcePosition, SourceRewrite
from penstock.protocol.sourcelog import digest
from penstock.store import Entry, MemoryStore

FILES = {
    "source/metadata": b"id",
    "source/.metadata.crc": b"crc",
    "source/offsets/0": b"offsets 0",
    "source/offsets/.0.crc": b"crc",
    "source/offsets/9": b"offsets 9",
    "source/offsets/10": b"offsets 10",
    "source/offsets/.10.crc": b"crc",
    "source/offsets/.11.0d3b.tmp": b"half",
    "source/commits/9": b"commit 9",
    "source/commits/10": b"commit 10",
    "source/sources/0/10": b"files of batch 10",
    "source/sources/0/9.compact": b"files",
    "source/state/0/10/1.delta": b"state of Spark's own",
}
AFTER_9 = {"source/offsets/10", "source/offsets/.10.crc", "source/commits/10"}
LEFT_OUT = {"source/offsets/.11.0d3b.tmp"}


def store_of(files: dict[str, bytes]) -> MemoryStore:
    store = MemoryStore()
    for path, data in files.items():
        store.create(path, data)
    return store


def content(store: MemoryStore) -> dict[str, bytes]:
    return {entry.path: store.read(entry.path) for entry in store.list("")}


def test_rewinding_removes_what_comes_after_and_nothing_else() -> None:
    """B1: numbers are compared as numbers, and only in the two logs."""
    store = store_of(FILES)
    rewind_source(store, 9)
    assert content(store) == {path: data for path, data in FILES.items() if path not in AFTER_9}
    rewind_source(store, None)
    assert not any(path.startswith(("source/offsets/0", "source/commits")) for path in content(store))


def test_a_copy_ends_with_the_checkpoints_micro_batch() -> None:
    """B1, B14."""
    target = MemoryStore()
    size = bring_source(store_of(FILES), target, 9)
    wanted = {path: data for path, data in FILES.items() if path not in AFTER_9 | LEFT_OUT}
    assert content(target) == wanted
    assert size == sum(map(len, wanted.values()))


class Cleaning(MemoryStore):
    """Spark removes old entries after they were listed, as often as it is said."""

    left: list[str]

    def list(self, prefix: str) -> list[Entry]:
        found = super().list(prefix)
        self.delete(self.left[:1])
        self.left = self.left[1:]
        return found


def cleaning(removed: Iterable[str]) -> Cleaning:
    store = Cleaning()
    for path, data in FILES.items():
        store.create(path, data)
    store.left = list(removed)
    return store


def test_entries_that_spark_removes_meanwhile_are_not_missed() -> None:
    """B14: a running query keeps its log short."""
    target = MemoryStore()
    bring_source(cleaning(["source/offsets/0", "source/offsets/.0.crc"]), target, 9)
    assert "source/offsets/9" in content(target)


def test_a_folder_that_goes_away_altogether_is_an_error() -> None:
    """B12: nothing waits for ever."""
    with pytest.raises(MissingFile):
        bring_source(cleaning(list(FILES)), MemoryStore(), 9)


def test_all_is_committed_when_the_newest_micro_batch_is() -> None:
    assert all_committed(store_of(FILES))


def test_a_micro_batch_without_its_commit_was_not_done() -> None:
    assert not all_committed(store_of({**FILES, "source/offsets/11": b"offsets 11"}))


def test_of_a_log_that_does_not_exist_yet_all_is_committed() -> None:
    assert all_committed(store_of({"source/metadata": b"id"}))


def rewritten(store: MemoryStore, *entries: str) -> SourcePosition:
    """The position of a change that made these the entries of micro-batches 0 and 1."""
    texts = {str(number): text for number, text in enumerate(entries)}
    position = SourcePosition(batch_id=BatchId(1), offsets_digest=digest(entries[1].encode()))
    rewrite_source(store, msgspec.structs.replace(position, rewrite=SourceRewrite(entries=texts)))
    return position


class Dies(MemoryStore):
    """A store whose driver dies when it writes one file."""

    before: str | None = None

    def create(self, path: str, content: bytes) -> None:
        if path == self.before:
            raise KeyboardInterrupt
        super().create(path, content)


@pytest.mark.parametrize("before", [None, offsets_path(BatchId(1)), offsets_path(BatchId(0))])
def test_after_a_crash_in_a_change_of_sources_each_change_can_be_gone_back_to(before: str | None) -> None:
    """What is put aside for a change is the log as it was, and no mixture of a repair."""
    store = Dies()
    store.create(offsets_path(BatchId(0)), b"first 0")
    store.create(offsets_path(BatchId(1)), b"first 1")
    store.before = before
    with nullcontext() if before is None else pytest.raises(KeyboardInterrupt):
        rewritten(store, "second 0", "second 1")
    store.before = None
    second = rewritten(store, "second 0", "second 1")
    rewritten(store, "third 0", "third 1")
    first = SourcePosition(batch_id=BatchId(1), offsets_digest=digest(b"first 1"))
    for position, name in ((first, "first"), (second, "second")):
        tail = read_tail(store, position)
        assert tail is not None
        assert tail.entries == {0: f"{name} 0", 1: f"{name} 1"}
