"""The history survives what crashes do to a file, and its lines are for people to read."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest

from penstock.observe.events import (
    Alive,
    CommitRetried,
    CommitSlow,
    CommitsSummed,
    Committed,
    EpochFailed,
    EpochPublished,
    EpochsSummed,
    Event,
    InFlightDropped,
    LongerEpoch,
    QueryStarted,
    QueryStopped,
    Rescaled,
    SavepointFailed,
    SavepointTaken,
    SourceLost,
    SourceProgress,
    SourceSlow,
    StartRefused,
    StateMigrated,
    StorageRetried,
    TableKept,
    UpkeepFailed,
    decode_events,
    encode_event,
)
from penstock.observe.figures import BytesWritten, StageFigures
from penstock.observe.progress import format_commit, format_epoch, human_bytes, human_seconds
from penstock.protocol.ids import BatchId, CheckpointId, Generation
from penstock.protocol.report import ErrorReport

AT = "2026-11-15T12:34:56.789012+00:00"
TOTALS = "totals"
SHOP = "shop.totals"

STARTED = QueryStarted(
    at=AT,
    name="totals",
    generation=Generation(7),
    restored=CheckpointId(41),
    parallelism={TOTALS: 4},
    max_parallelism=128,
    version="0.1.0",
)
PUBLISHED = EpochPublished(
    at=AT,
    checkpoint=CheckpointId(42),
    kind="ingest",
    batch_id=BatchId(17),
    rows_in=12_345,
    rows_processed=10_000,
    rows_out=500,
    rows_in_flight=2_345,
    bytes_in_flight=1_234_567,
    segments_in_flight=3,
    duration_s=1.2,
    job_s=1.1,
    publish_s=0.003,
    barrier_fired=True,
    barrier_delay_s=0.012,
    bytes_written=BytesWritten(segments=100, state=20, manifest=3),
    parallelism={TOTALS: 4},
    committed=CheckpointId(40),
)
COMMITTED = Committed(
    at=AT,
    sink=SHOP,
    first=CheckpointId(40),
    last=CheckpointId(42),
    snapshot=9,
    rows=1_500,
    files=4,
    duration_s=0.041,
)
EVENTS: list[Event] = [
    STARTED,
    PUBLISHED,
    EpochFailed(at=AT, checkpoint=CheckpointId(43), attempt=1, code="PEN-033", message='job\n"failed" {"event":'),
    COMMITTED,
    CommitRetried(at=AT, sink=SHOP, first=CheckpointId(43), last=CheckpointId(43), attempt=2, message="timed out"),
    Rescaled(at=AT, stage=TOTALS, old=4, new=8),
    InFlightDropped(at=AT, edge="clicks-to-totals", checkpoint=CheckpointId(41), rows=12, bytes=345),
    StateMigrated(at=AT, table="totals", checkpoint=CheckpointId(41), rows=12, bytes=345, duration_s=0.1),
    SavepointTaken(
        at=AT, path="copies/1", checkpoint=CheckpointId(42), rows_in_flight=7, files=3, bytes=4_096, duration_s=0.2
    ),
    SavepointFailed(at=AT, path="copies/2", checkpoint=CheckpointId(42), error=ErrorReport("PEN-032", "x", "y", "z")),
    TableKept(
        at=AT,
        sink=SHOP,
        manifests_merged=31,
        files_compacted=60,
        files_written=1,
        snapshots_expired=12,
        orphans_removed=0,
        bytes_removed=48_000,
        held_by=None,
        notes=[],
        duration_s=0.3,
    ),
    CommitSlow(at=AT, sink=SHOP, what="commit", first=CheckpointId(3), last=CheckpointId(5), waited_s=301.5),
    SourceLost(at=AT, source="clicks", what="clicks-0 from 5 to 9", offsets=5),
    SourceSlow(at=AT, source="clicks", what="Spark says 'Getting offsets'", waited_s=300.2),
    StorageRetried(at=AT, what="publish checkpoint 7", attempt=2, message="[PEN-032] Storage failed: away"),
    Alive(at=AT, generation=Generation(7), every_s=10.0, stage=TOTALS, sources=(SourceProgress(source="clicks"),)),
    StartRefused(at=AT, error=ErrorReport("PEN-010", "x", "y", "z")),
    EpochsSummed(at=AT, since=AT, first=CheckpointId(1), last=CheckpointId(60), epochs=60, rows_in=6),
    CommitsSummed(at=AT, since=AT, sink=SHOP, first=CheckpointId(1), last=CheckpointId(60), commits=60),
    UpkeepFailed(at=AT, sink=SHOP, attempt=1, message="OSError: disk full"),
    QueryStopped(at=AT, reason="failed", error=ErrorReport("PEN-030", "x", "y", "z", {"operator": "totals"})),
]
HISTORY = b"".join(encode_event(event) for event in EVENTS)


def published(**changes: Any) -> EpochPublished:
    return msgspec.structs.replace(PUBLISHED, **changes)


def test_the_examples_hold_every_kind_of_event() -> None:
    assert {type(event) for event in EVENTS} == set(get_args(Event))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_is_one_line_of_json_that_names_its_kind_and_time(event: Event) -> None:
    line = encode_event(event)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    content = json.loads(line)
    assert (content["event"], content["at"]) == (type(event).__name__, AT)


def test_a_history_reads_back_as_it_was_written() -> None:
    assert decode_events(HISTORY) == EVENTS


def test_an_empty_history_has_no_events() -> None:
    assert decode_events(b"") == []


def test_a_history_cut_at_any_byte_keeps_all_whole_events() -> None:
    ends = [len(b"".join(map(encode_event, EVENTS[:count]))) - 1 for count in range(1, len(EVENTS) + 1)]
    for length in range(len(HISTORY)):
        whole = sum(end <= length for end in ends)
        assert decode_events(HISTORY[:length]) == EVENTS[:whole]


def test_what_the_next_driver_writes_behind_a_torn_line_is_found() -> None:
    torn = encode_event(PUBLISHED)
    for length in range(len(torn) - 1):
        data = encode_event(STARTED) + torn[:length] + encode_event(STARTED) + encode_event(COMMITTED)
        assert decode_events(data) == [STARTED, STARTED, COMMITTED]


def test_a_line_torn_inside_a_character_is_left_out() -> None:
    message = EpochFailed(at=AT, checkpoint=CheckpointId(1), attempt=1, code="PEN-030", message="é")
    line = encode_event(message)
    torn = line[: line.index("é".encode()) + 1]
    assert decode_events(encode_event(STARTED) + torn) == [STARTED]
    assert decode_events(torn + b'"}\n' + encode_event(STARTED)) == [STARTED]


def test_events_and_fields_of_a_newer_version_are_passed_over() -> None:
    newer = b'{"event":"Teleported","at":"x"}\n' + encode_event(STARTED).replace(b'"at":', b'"mood":"good","at":')
    assert decode_events(newer) == [STARTED]


def test_bytes_written_add_up() -> None:
    assert PUBLISHED.bytes_written.total == 123


def test_an_epoch_is_one_line_with_everything_people_ask_for() -> None:
    """E4."""
    assert format_epoch(PUBLISHED) == (
        "epoch     42 ingest   in      12,345  processed      10,000  in flight       2,345 rows   1.2 MB  "
        "barrier  +12 ms  publish   3 ms  committed     40"
    )


def test_an_epoch_that_had_to_be_longer_says_why() -> None:
    longer = LongerEpoch(asked_s=1.0, got_s=2.6, because="an epoch needs 1.04 s besides processing")
    line = format_epoch(published(cadence=longer))
    assert line.endswith("cadence: asked 1.0 s, got 2.6 s, because an epoch needs 1.04 s besides processing")
    assert decode_events(encode_event(published(cadence=longer))) == [published(cadence=longer)]


def test_an_epoch_without_barrier_and_commit_shows_dashes() -> None:
    line = format_epoch(published(barrier_fired=False, barrier_delay_s=0.0, committed=None))
    assert "barrier       –  " in line
    assert line.endswith("committed      –")


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "drain", "rows_in": 0, "committed": None},
        {"kind": "takeover", "barrier_fired": False, "rows_in_flight": 0, "bytes_in_flight": 0},
        {"rows_in": 99_999_999, "rows_in_flight": 99_999_999, "bytes_in_flight": 999_949_999_999},
        {"barrier_delay_s": 99.94, "publish_s": 0.9994, "checkpoint": 999_999},
    ],
)
def test_the_columns_of_epochs_are_aligned(changes: dict[str, Any]) -> None:
    usual, other = format_epoch(PUBLISHED), format_epoch(published(**changes))
    for column in (" in ", "processed", "in flight", "rows", "barrier", "publish", "committed"):
        assert other.index(column) == usual.index(column)
    assert len(other) == len(usual)


def test_a_commit_of_several_checkpoints_names_the_first_and_the_last() -> None:
    assert format_commit(COMMITTED) == "commit 40–42 to shop.totals: snapshot 9, 1,500 rows in 4 files, 41 ms"


def test_a_commit_of_one_checkpoint_without_snapshot_says_so() -> None:
    one = msgspec.structs.replace(COMMITTED, first=CheckpointId(42), snapshot=None, rows=0, files=1)
    assert format_commit(one) == "commit 42 to shop.totals: no snapshot, 0 rows in 1 file, 41 ms"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KB"),
        (999_949, "999.9 KB"),
        (999_950, "1.0 MB"),
        (64_000_000, "64.0 MB"),
        (1_500_000_000, "1.5 GB"),
        (2 * 10**12, "2.0 TB"),
        (3 * 10**15, "3.0 PB"),
    ],
)
def test_sizes_are_shown_in_the_units_in_which_they_are_written(count: int, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0123, "12 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (99.94, "99.9 s"),
        (100, "2 min"),
        (7200, "2.0 h"),
        (2.592e6, "30.0 d"),
        (-60, "-60.0 s"),
    ],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


def test_a_line_ends_with_what_autoscaling_says() -> None:
    line = format_epoch(published(scaling={TOTALS: "2→4: backlog 12 s (3MB) at 30k rows/s"}))
    assert line == f"{format_epoch(PUBLISHED)}  totals 2→4: backlog 12 s (3MB) at 30k rows/s"


def test_events_of_a_query_whose_names_sound_secret_can_be_read_again() -> None:
    event = published(parallelism={"tokens": 2}, stages={"password": StageFigures(rows=3)}, watermarks={"token": AT})
    assert decode_events(encode_event(event)) == [event]


def test_an_error_with_a_secret_before_a_line_break_can_be_read_again() -> None:
    error = ErrorReport("PEN-030", "bad token:\nhunter2\nat line 1", "", "")
    (event,) = decode_events(encode_event(QueryStopped(at=AT, reason="failed", error=error)))
    assert isinstance(event, QueryStopped)
    assert event.error is not None
    assert event.error.seen == "bad token:\n***\nat line 1"
