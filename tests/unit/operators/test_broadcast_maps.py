"""Broadcast maps: what broadcast rows make of them counts, in place or not, and nobody else changes them (B9)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import CorruptFile, OperatorFailed
from penstock.operators.process import broadcast_state
from penstock.state.keyed import KeyedState
from penstock.testing import Harness, stream_of

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
ROW = {"k": 1, "v": 9}


class Collecting(pen.ConnectProcess):
    """Broadcast rows extend the list of their key; rows get what is there."""

    inputs = ("a", "b")
    output = "xs array<bigint>"
    lists = pen.broadcast_map("bigint", "array<bigint>")

    def process(self, port: str, key: Any, rows: Any, state: Any, out: Any) -> None:
        out.emit(xs=state.lists.get(1, []))

    def process_broadcast(self, port: str, rows: Any, broadcast: Any) -> None:
        for row in rows:
            broadcast.lists.setdefault(row["k"], []).append(row["v"])


def harness(process: Any) -> Harness:
    rules = stream_of(SCHEMA, "b").broadcast()
    return Harness(stream_of(SCHEMA, "a").key_by("k").connect(rules, process=process, name="c"))


def test_a_list_in_a_broadcast_map_that_is_changed_in_place_is_stored() -> None:
    running = harness(Collecting)
    for number in (1, 2):
        assert running.feed(a=[ROW], b=[{"k": 1, "v": number}]) == [{"xs": [1, 2][:number]}]
    assert running.feed(a=[ROW]) == [{"xs": [1, 2]}]
    assert running.state("c", "lists") == [{"key": 1, "value": [1, 2]}]


def test_lists_that_were_only_read_are_not_stored_again() -> None:
    class Reading(Collecting):
        def process_broadcast(self, port: str, rows: Any, broadcast: Any) -> None:
            for row in rows:
                if all(row["v"] not in items for items in broadcast.lists.values()):
                    broadcast.lists[row["k"]] = [row["v"]]

    running = harness(Reading)
    running.feed(b=[{"k": 1, "v": 1}, {"k": 1, "v": 1}])
    running.feed(b=[{"k": 2, "v": 1}, {"k": 2, "v": 2}])
    assert sorted(row["key"] for row in running.state("c", "lists")) == [1, 2]


def test_keyed_code_cannot_change_a_list_in_a_broadcast_map() -> None:
    class Meddling(Collecting):
        def process(self, port: str, key: Any, rows: Any, state: Any, out: Any) -> None:
            state.lists[1].append(99)
            out.emit(xs=state.lists[1])

    running = harness(Meddling)
    assert running.feed(a=[ROW], b=[{"k": 1, "v": 1}]) == [{"xs": [1]}]
    assert running.feed(a=[ROW]) == [{"xs": [1]}]


def test_a_value_has_the_same_type_in_all_epochs() -> None:
    class Shown(pen.ConnectProcess):
        inputs = ("a", "b")
        output = "shown string"
        given = pen.broadcast_map("bigint", "struct<when:timestamp,names:array<string>>")

        def process(self, port: str, key: Any, rows: Any, state: Any, out: Any) -> None:
            out.emit(shown=repr(state.given[1]))

        def process_broadcast(self, port: str, rows: Any, broadcast: Any) -> None:
            broadcast.given[1] = {"when": 5, "names": ("a",)}

    running = harness(Shown)
    (first,) = running.feed(a=[ROW], b=[ROW])
    (second,) = running.feed(a=[ROW])
    assert first == second
    assert "'names': ['a']" in first["shown"]


def test_a_broadcast_map_cannot_be_replaced_by_a_dict() -> None:
    class Replacing(Collecting):
        def process_broadcast(self, port: str, rows: Any, broadcast: Any) -> None:
            broadcast.lists = {1: [1]}

    with pytest.raises(OperatorFailed, match="'lists' cannot be replaced"):
        harness(Replacing).feed(b=[ROW])


class Forgiving(Collecting):
    """Takes whatever goes wrong for an entry that is not there."""

    def process(self, port: str, key: Any, rows: Any, state: Any, out: Any, timers: Any) -> None:
        timers.after("1 s")
        out.emit(xs=self.found(state.lists))

    def on_timer(self, key: Any, time: Any, state: Any, out: Any, timers: Any) -> None:
        out.emit(xs=self.found(state.lists))

    def process_broadcast(self, port: str, rows: Any, broadcast: Any) -> None:
        broadcast.lists[1] = [*self.found(broadcast.lists), 1]

    def found(self, lists: Any) -> list[int]:
        try:
            return lists[1]
        except Exception:  # noqa: BLE001 - as users write it
            return []


class Unforgiving(Forgiving):
    def found(self, lists: Any) -> list[int]:
        return lists.get(1, [])


@pytest.mark.parametrize("process", [Forgiving, Unforgiving])
@pytest.mark.parametrize("whole", [True, False], ids=["small map", "large map"])
@pytest.mark.parametrize(
    "cause",
    [lambda h: h.feed(a=[ROW]), lambda h: h.feed(b=[ROW]), lambda h: h.pass_time("2 s")],
    ids=["rows", "broadcast rows", "timer"],
)
def test_state_that_cannot_be_read_is_no_failure_of_user_code(
    process: Any, whole: bool, cause: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D8, E1: it is told as what it is, and code that passes over every error does not go on without the entry."""
    running = harness(process)
    running.feed(b=[ROW])
    assert running.feed(a=[ROW]) == [{"xs": [1]}]
    if not whole:
        monkeypatch.setattr(broadcast_state, "_READ_WHOLE_ROWS_MAX", 0)
    name = "scan" if whole else "lookup"
    read = getattr(KeyedState, name)

    def damaged(state: KeyedState, *arguments: Any) -> Any:
        if state._schema.values.names == ["value"]:
            raise CorruptFile("state/c/lists", cause="a bad disk", next_step="restore an older checkpoint")
        return read(state, *arguments)

    monkeypatch.setattr(KeyedState, name, damaged)
    with pytest.raises(CorruptFile, match="state/c/lists"):
        cause(running)


def test_a_map_that_was_not_asked_for_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Indifferent(Collecting):
        def process(self, port: str, key: Any, rows: Any, state: Any, out: Any) -> None:
            out.emit(xs=[])

    running = harness(Indifferent)
    running.feed(b=[ROW])
    monkeypatch.setattr(KeyedState, "scan", None)
    assert running.feed(a=[ROW]) == [{"xs": []}]
