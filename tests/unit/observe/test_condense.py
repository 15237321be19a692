"""Older parts of a history are summed: nothing is counted twice or lost, and a month of epochs stays bounded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from penstock.observe.condense import condense, summed
from penstock.observe.events import (
    Alive,
    CommitsSummed,
    Committed,
    EpochPublished,
    EpochsSummed,
    QueryStopped,
    decode_events,
    encode_event,
)
from penstock.observe.folder import Folder
from penstock.observe.journal import OLDER_MAX, append_line, read_journal, sum_up
from penstock.protocol.ids import CheckpointId, Generation
from penstock.store import open_store
from tests.unit.observe.test_events import COMMITTED, PUBLISHED, STARTED

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)


def at(second: float) -> str:
    return (BEGIN + timedelta(seconds=second)).isoformat(timespec="milliseconds")


def epoch(number: int) -> EpochPublished:
    """Its times add up without a rest."""
    checkpoint = CheckpointId(number)
    return msgspec.structs.replace(PUBLISHED, at=at(number), checkpoint=checkpoint, duration_s=0.5, publish_s=0.25)


def commit(number: int) -> Committed:
    return msgspec.structs.replace(
        COMMITTED, at=at(number), first=CheckpointId(number), last=CheckpointId(number), snapshot=number
    )


def test_epochs_and_commits_of_a_minute_become_one_line_each() -> None:
    events = [part for number in range(180) for part in (epoch(number), commit(number))]
    made = list(summed(events, 60.0))
    epochs = [event for event in made if isinstance(event, EpochsSummed)]
    commits = [event for event in made if isinstance(event, CommitsSummed)]
    assert [(one.first, one.last, one.epochs) for one in epochs] == [(0, 59, 60), (60, 119, 60), (120, 179, 60)]
    assert sum(one.rows_in for one in epochs) == 180 * PUBLISHED.rows_in
    assert [(one.first, one.last, one.snapshot) for one in commits] == [(0, 59, 59), (60, 119, 119), (120, 179, 179)]


def test_what_happened_stays_and_signs_of_life_go() -> None:
    stopped = QueryStopped(at=at(2), reason="stopped")
    sign = Alive(at=at(1), generation=Generation(1), every_s=10.0)
    made = list(summed([STARTED, epoch(1), sign, stopped, epoch(3)], 60.0))
    assert [type(event).__name__ for event in made] == ["QueryStarted", "EpochsSummed", "QueryStopped", "EpochsSummed"]


def test_sums_of_sums_are_the_sums() -> None:
    events = [epoch(number) for number in range(500)]
    once = list(summed(events, 600.0))
    assert list(summed(summed(events, 60.0), 600.0)) == once


def test_a_piece_goes_into_the_sums_before_it_would_be_removed(tmp_path) -> None:
    store = open_store(str(tmp_path))
    for number in range(1500):
        append_line(store, encode_event(epoch(number)), 30_000)
        sum_up(store, condense)
    view = Folder(store).look()
    assert view.older_epochs[0].first == 0
    assert sum(one.epochs for one in view.older_epochs) + len(view.epochs) == 1500
    assert len(list((tmp_path / "events").glob("*-summed.jsonl"))) == 1
    assert len(list((tmp_path / "events").glob("*.jsonl"))) <= OLDER_MAX + 1


def test_a_crash_between_the_sums_and_the_removal_counts_nothing_twice(tmp_path, monkeypatch) -> None:
    store = open_store(str(tmp_path))
    for number in range(OLDER_MAX * 40):
        append_line(store, encode_event(epoch(number)), 30_000)
    with monkeypatch.context() as patched:
        patched.setattr(store, "delete", lambda paths: None)
        while sum_up(store, condense) and not list((tmp_path / "events").glob("*-summed.jsonl")):
            pass
    events = decode_events(read_journal(store))
    whole = sum(isinstance(event, EpochPublished) for event in events)
    assert whole + sum(event.epochs for event in events if isinstance(event, EpochsSummed)) <= OLDER_MAX * 40


def test_a_month_of_epochs_of_a_second_stays_bounded_and_readable() -> None:
    """Minutes at first; the older half over longer stretches as it grows."""
    bytes_max, kept = 1 << 20, b""
    day = [encode_event(epoch_of_minute) for epoch_of_minute in _minutes_of_a_day()]
    for _ in range(30):
        kept = condense(kept + b"".join(day), bytes_max)
        assert len(kept) <= bytes_max
    assert any(isinstance(event, EpochsSummed) for event in decode_events(kept))


def _minutes_of_a_day() -> list[EpochsSummed]:
    minute = next(iter(summed([epoch(0)], 60.0)))
    assert isinstance(minute, EpochsSummed)
    return [
        msgspec.structs.replace(
            minute, at=at(60.0 * number), since=at(60.0 * number), first=number * 60, last=number * 60 + 59, epochs=60
        )
        for number in range(1440)
    ]
