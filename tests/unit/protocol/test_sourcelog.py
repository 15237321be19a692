"""Spark's offset log under changes of sources."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec
import pytest

from penstock.protocol.ids import BatchId
from penstock.protocol.manifest import SourcePosition
from penstock.protocol.sourcelog import (
    EVOLUTION,
    LogEntry,
    NotAnEntry,
    Seed,
    Sources,
    Tail,
    digest,
    first_names,
    moved,
    read_entry,
    why_fixed,
    write_entry,
)

V1 = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":7,"conf":{"x":"1"}}\n{"logOffset":3}\n-'


def test_an_entry_by_places_is_read() -> None:
    entry = read_entry(V1)
    assert isinstance(entry, LogEntry)
    assert entry.offsets == {"0": '{"logOffset":3}', "1": None}
    assert not entry.by_name


def test_an_entry_that_is_written_is_read_again_with_its_settings() -> None:
    entry = read_entry(write_entry({"conf": {"x": "1"}}, {"a": '{"k":{"0":5}}', "b": None}))
    assert isinstance(entry, LogEntry)
    assert entry.by_name
    assert entry.offsets == {"a": '{"k":{"0":5}}', "b": None}
    assert entry.metadata["conf"] == {"x": "1", EVOLUTION: "true"}


def test_names_of_an_entry_are_places_unless_its_settings_say_names() -> None:
    entry = read_entry('v2\n{"conf":{}}\n0:5')
    assert isinstance(entry, LogEntry)
    assert not entry.by_name


@pytest.mark.parametrize("text", ["", "v3\n{}\n1", "v1\nno json\n1", "v2\n{}\nno name", "v1\n[1]\n2"])
def test_a_file_that_is_no_entry_is_told(text: str) -> None:
    assert isinstance(read_entry(text), NotAnEntry)


class Spark:
    """Reads sources as Spark does: from the newest entry of its log, by the names in it, else from the beginning."""

    def __init__(self, position: SourcePosition, sources: Sequence[str]) -> None:
        self.position, self.sources = position, list(sources)
        self.log: dict[BatchId, str] = {}
        self.available = dict.fromkeys("abc", 0)
        self.got: dict[str, list[int]] = {name: [] for name in "abc"}
        self.folders: set[str] = set()

    def change(self, sources: Sequence[str]) -> None:
        batch = self.position.batch_id
        tail = Tail({number: text for number, text in self.log.items() if batch is not None and number >= batch - 1})
        assert why_fixed(self.position, tail, self.sources) is None
        carried = {name: name for name in sources if name in self.sources}
        now = Sources(dict.fromkeys(sources, 1), frozenset(self.folders))
        self.position = moved(self.position, tail, self.sources, carried, now)
        self.sources = list(sources)
        if not isinstance(self.position.rewrite, msgspec.UnsetType):
            self.log |= {BatchId(int(number)): text for number, text in self.position.rewrite.entries.items()}

    def read(self) -> None:
        """Everything there is, as the next micro-batch."""
        for name in self.available:
            self.available[name] += 1
        assert not isinstance(self.position.names, msgspec.UnsetType)
        batch = self.position.batch_id
        start = {} if batch is None else read_entry(self.log[batch]).offsets  # type: ignore[union-attr]
        if batch is not None:
            assert self.position.offsets_digest == digest(self.log[batch].encode())
        offsets = {}
        for source in self.sources:
            (name,) = self.position.names[source]
            begin = int(start.get(name) or 0)
            self.got[source] += range(begin, self.available[source])
            offsets[name] = str(self.available[source])
            self.folders.add(name)
        batch = BatchId(0 if batch is None else batch + 1)
        self.log[batch] = write_entry({}, offsets)
        self.position = msgspec.structs.replace(
            self.position,
            batch_id=batch,
            offsets_digest=digest(self.log[batch].encode()),
            rewrite=msgspec.UNSET,
            rewind=False,
        )


CHOICES = [choice for count in (1, 2, 3) for choice in itertools.permutations("abc", count)]


def test_every_source_is_read_once_whatever_comes_and_goes() -> None:
    """F1: exhaustive over three programs with up to three sources each, in every order."""
    for first, second, third in itertools.product(CHOICES, repeat=3):
        spark = Spark(SourcePosition(names=first_names(Sources(dict.fromkeys(first, 1)))), first)
        spark.read()
        spark.change(second)
        spark.read()
        spark.change(third)
        spark.read()
        for name, rows in spark.got.items():
            last = max((k for k, used in enumerate((first, second, third), 1) if name in used), default=0)
            assert rows == list(range(last)), (first, second, third, name)


def test_a_log_by_places_keeps_places_as_names() -> None:
    position = SourcePosition(batch_id=BatchId(4), offsets_digest=digest(V1.encode()))
    tail = Tail({BatchId(4): V1})
    after = moved(position, tail, ["a", "b"], {"b": "b"}, Sources({"b": 1, "c": 1}, frozenset({"0", "1"})))
    assert after.names == {"b": ("1",), "c": ("c",)}
    assert after.parked == {"a": {"0": '{"logOffset":3}'}}
    assert after.rewind
    assert not isinstance(after.rewrite, msgspec.UnsetType)
    entry = read_entry(after.rewrite.entries["4"])
    assert isinstance(entry, LogEntry)
    assert entry.offsets == {"1": None}
    assert entry.metadata["batchTimestampMs"] == 7


def test_a_log_with_other_sources_than_the_checkpoint_stays_as_it_is() -> None:
    position = SourcePosition(batch_id=BatchId(4))
    assert "2 sources by their places" in str(why_fixed(position, Tail({BatchId(4): V1}), ["a"]))
    assert "cannot be read" in str(why_fixed(position, Tail(), ["a"]))
    named = write_entry({}, {"mine": "1"})
    assert "readStream.name" in str(why_fixed(position, Tail({BatchId(4): named}), ["a"]))


def test_a_source_that_is_reset_gets_a_name_that_spark_never_used() -> None:
    position = SourcePosition(batch_id=BatchId(0), names={"a": ("a",)})
    tail = Tail({BatchId(0): write_entry({}, {"a": "9"})})
    after = moved(position, tail, ["a"], {"a": "a"}, Sources({"a": 1}, frozenset({"a"}), anew=frozenset({"a"})))
    assert after.names == {"a": ("a_2",)}


def test_a_source_begins_where_another_query_ended() -> None:
    """F10."""
    seed = Seed({"a": "41", "a_2": None}, {"conf": {"x": "1"}}, "read on")
    after = moved(SourcePosition(), Tail(), [], {}, Sources({"a": 2, "b": 1}, (), {"a": seed}))
    assert after.batch_id == 0
    assert after.names == {"a": ("a", "a_2"), "b": ("b",)}
    assert not isinstance(after.rewrite, msgspec.UnsetType)
    entry = read_entry(after.rewrite.entries["0"])
    assert isinstance(entry, LogEntry)
    assert entry.offsets == {"a": "41", "a_2": None}
