"""The read model: what a folder tells about its query, whether it runs, ended, died or comes from anybody."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from penstock.cli.status import as_document
from penstock.errors import StageFailed
from penstock.observe import folder as folder_module
from penstock.observe import gathered
from penstock.observe.condense import seconds_of
from penstock.observe.events import (
    Alive,
    CommitSlow,
    DriverProcess,
    EpochFailed,
    Event,
    QueryStopped,
    SourceSlow,
    StartRefused,
    StorageRetried,
    decode_events,
    encode_event,
)
from penstock.observe.figures import StageFigures
from penstock.observe.folder import Folder
from penstock.observe.journal import append_line
from penstock.observe.page.document import document
from penstock.observe.process import life_of, this_process
from penstock.observe.tables.opened import OpenFolder
from penstock.observe.verdict import Health, Life, Standing
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.report import ErrorReport
from penstock.store import open_store
from penstock.testing.inline import InlineRun
from tests.support.engine_jobs import FakeClock, batches_of, crash_in_job, keyed_slow
from tests.unit.observe.test_events import AT, PUBLISHED, STARTED

NOW_S = 1_794_746_100.0
"""A few seconds after `AT`."""


def folder_of(tmp_path: Path, *events: Event, life: Life = Life.UNKNOWN, now_s: float = NOW_S) -> Folder:
    store = open_store(str(tmp_path))
    for event in events:
        append_line(store, encode_event(event))
    return Folder(store, now_s=lambda: now_s, life=lambda _: life)


def run(tmp_path: Path, table: str, **options: object) -> None:
    clock = FakeClock()
    query = InlineRun(batches_of(500, 3), clock).start(
        keyed_slow(clock, table), checkpoint=tmp_path, epoch="100 ms", **options
    )
    query.await_termination(60)


def test_a_folder_without_a_query_is_empty(tmp_path: Path) -> None:
    view = Folder(open_store(str(tmp_path))).look()
    assert (view.verdict.kind, view.verdict.health) == (Standing.EMPTY, Health.EMPTY)
    assert (view.checkpoints, view.epochs, view.stages) == ((), (), ())


def test_the_folder_of_a_finished_query_tells_everything_about_it(tmp_path: Path, table: str) -> None:
    run(tmp_path, table)
    view = Folder(open_store(str(tmp_path))).look()
    assert view.verdict.kind is Standing.FINISHED
    assert view.newest is not None
    assert view.checkpoint_ids[-1] == view.newest.checkpoint == view.epochs[-1].checkpoint
    assert [source.name for source in view.sources] == ["source"]
    assert sum(edge.accepted for edge in view.edges) == sum(edge.consumed for edge in view.edges)
    assert view.rows_in_flight == 0
    assert view.backlog_s == 0.0
    assert sum(epoch.rows_in for epoch in view.epochs) == 1500
    assert view.commits
    assert view.uncommitted == 0
    assert view.sinks[0].last_commit == view.commits[-1]
    (started,) = view.runs
    assert started.generation == 1
    assert started.stopped is not None
    assert (started.first, started.last) == (view.epochs[0].checkpoint, view.epochs[-1].checkpoint)


def test_the_graph_leads_from_every_source_to_every_sink(tmp_path: Path, table: str) -> None:
    run(tmp_path, table)
    view = Folder(open_store(str(tmp_path))).look()
    reached = {source.name for source in view.sources}
    for _ in view.links:
        reached |= {consumer for producer, consumer in view.links if producer in reached}
    assert reached == {part.name for part in (*view.sources, *view.operators, *view.sinks)}


def test_a_failed_query_tells_its_code_cause_and_next_step(tmp_path: Path, table: str) -> None:
    clock = FakeClock()
    crashing = InlineRun(batches_of(500, 2), clock, prepare=crash_in_job(set(range(2, 99))))
    with pytest.raises(StageFailed):
        crashing.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch="100 ms").await_termination(60)
    verdict = Folder(open_store(str(tmp_path))).look().verdict
    assert (verdict.kind, verdict.code, verdict.health) == (Standing.FAILED, "PEN-033", Health.DEAD)
    assert "executor lost" in verdict.why
    assert "start again" in verdict.next_step


def test_looking_again_reads_only_what_is_new_and_sees_all_of_it(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, STARTED, PUBLISHED)
    assert len(folder.look().epochs) == 1
    append_line(open_store(str(tmp_path)), encode_event(msgspec.structs.replace(PUBLISHED, checkpoint=43)))
    assert [epoch.checkpoint for epoch in folder.look().epochs] == [42, 43]


def test_a_line_that_is_being_written_is_seen_once_it_is_whole(tmp_path: Path) -> None:
    line = encode_event(PUBLISHED)
    folder = folder_of(tmp_path, STARTED)
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(line[:100])
        file.flush()
        assert folder.look().epochs == ()
        file.write(line[100:])
    assert folder.look().epochs == (PUBLISHED,)


def test_a_piece_that_was_put_away_between_two_looks_is_read_once(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    folder = Folder(store, now_s=lambda: NOW_S, life=lambda _: Life.ALIVE)
    for number in range(1, 40):
        append_line(store, encode_event(msgspec.structs.replace(PUBLISHED, checkpoint=number)), 4000)
        assert [epoch.checkpoint for epoch in folder.look().epochs] == list(range(1, number + 1))


def test_manifests_that_cannot_be_read_are_listed_and_the_rest_is_shown(tmp_path: Path, table: str) -> None:
    run(tmp_path, table, retain=3)
    newest = max((tmp_path / "manifests").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:-40])
    view = Folder(open_store(str(tmp_path))).look()
    assert [entry.code for entry in view.unreadable] == ["PEN-012"]
    assert view.newest is not None
    assert view.newest.checkpoint == view.checkpoint_ids[-2]


def test_a_long_message_is_cut(tmp_path: Path) -> None:
    error = ErrorReport("PEN-030", "x" * 1_000_000, "<script>alert(1)</script>", "\x1b[2J")
    view = folder_of(tmp_path, STARTED, QueryStopped(at=AT, reason="failed", error=error)).look()
    assert len(view.failures[0].seen) <= 4000


# -- alive or dead ---------------------------------------------------------------------------------------------------

ALIVE = Alive(at=AT, generation=Generation(7), every_s=10.0)
SAID = ErrorReport("PEN-030", "it broke", "a reason", "do this")


@pytest.mark.parametrize(
    ("events", "life", "later_s", "kind"),
    [
        ([STARTED], Life.ALIVE, 3, Standing.STARTING),
        ([STARTED, PUBLISHED], Life.ALIVE, 3, Standing.RUNNING),
        ([STARTED, PUBLISHED, ALIVE], Life.UNKNOWN, 30, Standing.RUNNING),
        ([STARTED, PUBLISHED, ALIVE], Life.UNKNOWN, 40, Standing.LOST),
        ([STARTED, PUBLISHED, ALIVE], Life.ALIVE, 40, Standing.LOST),
        ([STARTED, PUBLISHED], Life.UNKNOWN, 500, Standing.RUNNING),
        ([STARTED, PUBLISHED], Life.UNKNOWN, 5000, Standing.LOST),
        ([STARTED, PUBLISHED, ALIVE], Life.GONE, 3, Standing.KILLED),
        ([STARTED, PUBLISHED, QueryStopped(at=AT, reason="stopped")], Life.GONE, 9999, Standing.STOPPED),
        ([STARTED, PUBLISHED, QueryStopped(at=AT, reason="drained")], Life.GONE, 9999, Standing.DRAINED),
        ([STARTED, PUBLISHED, QueryStopped(at=AT, reason="finished")], Life.ALIVE, 9999, Standing.FINISHED),
        ([STARTED, PUBLISHED, QueryStopped(at=AT, reason="fenced", error=SAID)], Life.GONE, 9, Standing.FENCED),
        ([STARTED, PUBLISHED, QueryStopped(at=AT, reason="failed", error=SAID)], Life.GONE, 9, Standing.FAILED),
        ([STARTED, SourceSlow(at=AT, source="a", what="b", waited_s=9.0)], Life.ALIVE, 3, Standing.SOURCE_SILENT),
        (
            [
                STARTED,
                PUBLISHED,
                SourceSlow(at=AT, source="a", what="b", waited_s=9.0),
                SourceSlow(at=AT, source="a", what="b", waited_s=9.0, answered=True),
            ],
            Life.ALIVE,
            3,
            Standing.RUNNING,
        ),
        (
            [
                STARTED,
                CommitSlow(at=AT, sink="a", what="commit", first=CheckpointId(1), last=CheckpointId(1), waited_s=9),
            ],
            Life.ALIVE,
            3,
            Standing.COMMIT_SLOW,
        ),
        (
            [STARTED, StorageRetried(at=AT, what="p", attempt=1, message="x")],
            Life.ALIVE,
            3,
            Standing.STORAGE_FAILING,
        ),
        (
            [STARTED, EpochFailed(at=AT, checkpoint=CheckpointId(43), attempt=1, code="PEN-033", message="x")],
            Life.ALIVE,
            3,
            Standing.EPOCH_FAILING,
        ),
        (
            [STARTED, QueryStopped(at=AT, reason="stopped"), StartRefused(at=AT, error=SAID)],
            Life.GONE,
            3,
            Standing.REFUSED,
        ),
        ([STARTED, PUBLISHED, StartRefused(at=AT, error=SAID)], Life.ALIVE, 3, Standing.RUNNING),
    ],
)
def test_the_verdict_follows_from_the_history_and_the_process(
    tmp_path: Path, events: list[Event], life: Life, later_s: float, kind: Standing
) -> None:
    now_s = (seconds_of(AT) or 0.0) + later_s
    assert folder_of(tmp_path, *events, life=life, now_s=now_s).look().verdict.kind is kind


def test_a_run_that_was_fenced_does_not_speak_for_the_one_that_replaced_it(tmp_path: Path) -> None:
    newer = msgspec.structs.replace(STARTED, generation=Generation(8))
    fenced = QueryStopped(at=AT, reason="fenced", error=SAID, generation=Generation(7))
    view = folder_of(tmp_path, STARTED, PUBLISHED, newer, PUBLISHED, fenced, life=Life.ALIVE).look()
    assert view.verdict.kind is Standing.RUNNING
    assert [run.stopped and run.stopped.reason for run in view.runs] == ["fenced", None]


def test_the_process_that_asks_lives() -> None:
    assert life_of(this_process()) is Life.ALIVE


def test_a_process_of_another_machine_or_container_may_live_or_not() -> None:
    assert life_of(msgspec.structs.replace(this_process(), host="elsewhere")) is Life.UNKNOWN
    assert life_of(msgspec.structs.replace(this_process(), space="another container")) is Life.UNKNOWN
    assert life_of(None) is Life.UNKNOWN


def test_a_later_process_of_the_same_number_is_another_one() -> None:
    assert life_of(msgspec.structs.replace(this_process(), began="12")) is Life.GONE


def test_a_process_that_ended_is_gone(tmp_path: Path) -> None:
    child = subprocess.Popen(["true"])
    mark: DriverProcess = msgspec.structs.replace(this_process(), pid=child.pid, began="")
    child.wait()
    assert life_of(mark) is Life.GONE


def test_a_long_history_is_read_as_the_same_whether_old_epochs_are_decoded_whole_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is only summed has no figures per stage; what is shown one by one has them."""
    monkeypatch.setattr(gathered, "EPOCHS_MAX", 20)
    monkeypatch.setattr(folder_module, "EPOCHS_MAX", 20)
    monkeypatch.setattr(folder_module, "CHUNK_BYTES", 4096)
    store = open_store(str(tmp_path))
    append_line(store, encode_event(STARTED))
    full = msgspec.structs.replace(PUBLISHED, stages={"totals": StageFigures(job_s=0.5, stepping_s=0.25, rows=7)})
    for number in range(400):
        at = datetime.fromtimestamp(1_800_000_000 + number, UTC).isoformat(timespec="milliseconds")
        event = msgspec.structs.replace(full, checkpoint=CheckpointId(number), at=at)
        append_line(store, encode_event(event), piece_bytes=40_000)
    decoded: list[bool] = []

    def decode(data: bytes, *, brief: bool = False) -> list[Event]:
        decoded.append(brief)
        return decode_events(data, brief=brief)

    monkeypatch.setattr(folder_module, "decode_events", decode)
    view = Folder(store).look()
    assert {True, False} == set(decoded)
    monkeypatch.setattr(folder_module, "SURELY", 1e9)
    whole = Folder(store).look()
    assert view.older_epochs == whole.older_epochs
    assert view.runs == whole.runs
    assert view.epochs == whole.epochs
    assert len(view.epochs) == 20
    assert all(epoch.stages["totals"].stepping_s == 0.25 for epoch in view.epochs)
    assert sum(part.epochs for part in view.older_epochs) + len(view.epochs) <= 400


def test_a_history_that_claims_to_be_a_terabyte_is_read_from_its_end(tmp_path: Path) -> None:
    """Forged: the file has a hole."""
    folder_of(tmp_path, STARTED)
    with (tmp_path / "events.jsonl").open("r+b") as file:
        file.truncate(1 << 40)
        file.seek(0, 2)
        file.write(b"\n" + encode_event(STARTED) + encode_event(PUBLISHED))
    view = folder_of(tmp_path).look()
    assert [epoch.checkpoint for epoch in view.epochs] == [PUBLISHED.checkpoint]


LATER = "2026-11-15T12:34:57.789012+00:00"
REFUSED = StartRefused(at=AT, error=ErrorReport("PEN-010", "the program does not fit", "", ""))


def test_a_start_that_was_refused_beside_a_query_does_not_hide_how_that_ended(tmp_path: Path) -> None:
    ended = QueryStopped(at=LATER, reason="drained")
    assert folder_of(tmp_path, STARTED, PUBLISHED, REFUSED, ended).look().verdict.kind is Standing.DRAINED
    assert folder_of(tmp_path, REFUSED).look().verdict.kind is Standing.REFUSED


def test_a_start_that_was_refused_beside_a_query_does_not_hide_that_it_was_killed(tmp_path: Path) -> None:
    went_on = msgspec.structs.replace(PUBLISHED, at=LATER)
    killed = folder_of(tmp_path, STARTED, PUBLISHED, REFUSED, went_on, life=Life.GONE)
    assert killed.look().verdict.kind is Standing.KILLED


@pytest.mark.parametrize("between", [False, True])
def test_a_query_that_begins_in_a_folder_that_was_emptied_is_not_told_the_old_history(
    tmp_path: Path, between: bool
) -> None:
    place = folder_of(tmp_path, STARTED, PUBLISHED, PUBLISHED)
    assert len(place.look().epochs) == 2
    (tmp_path / "events.jsonl").unlink()
    if between:
        assert place.look().epochs == ()
    append_line(open_store(str(tmp_path)), encode_event(msgspec.structs.replace(STARTED, name="anew")))
    view = place.look()
    assert (view.name, view.epochs) == ("anew", ())


def test_a_manifest_under_another_number_is_listed_as_unreadable(tmp_path: Path, table: str) -> None:
    run(tmp_path, table)
    newest = max((tmp_path / "manifests").iterdir())
    (tmp_path / "manifests/0000000999.json").write_bytes(newest.read_bytes())
    view = Folder(open_store(str(tmp_path))).look()
    assert [entry.path for entry in view.unreadable] == ["manifests/0000000999.json"]
    assert view.checkpoints[-1].checkpoint == int(newest.stem)


@pytest.mark.parametrize("duration_s", [5e-324, 2**62 / 1.79765e308])
def test_rates_of_epochs_that_took_no_time_are_numbers_that_json_has(tmp_path: Path, duration_s: float) -> None:
    epoch = msgspec.structs.replace(PUBLISHED, duration_s=duration_s, waited_s=0.0, rows_in=2**62)
    view = folder_of(tmp_path, STARTED, epoch).look()
    for told in (as_document(view), document(view)):
        json.dumps(told, allow_nan=False)


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00"])
def test_moments_at_the_ends_of_the_calendar_are_read(tmp_path: Path, at: str) -> None:
    folder_of(tmp_path, msgspec.structs.replace(PUBLISHED, at=at, watermarks={"totals": at}))
    (epoch,) = OpenFolder(open_store(str(tmp_path))).epochs().to_pylist()
    assert epoch["checkpoint"] == PUBLISHED.checkpoint


def test_a_clock_that_was_set_back_does_not_hide_what_a_query_waits_for(tmp_path: Path) -> None:
    before = "2026-11-15T11:34:56.789012+00:00"
    sign = Alive(at=before, generation=STARTED.generation, every_s=10.0, waiting_for="input")
    now_s = (seconds_of(before) or 0.0) + 1.0
    verdict = folder_of(tmp_path, STARTED, PUBLISHED, sign, life=Life.ALIVE, now_s=now_s).look().verdict
    assert (verdict.kind, verdict.why) == (Standing.WAITING, "it waits for input")


def test_epochs_of_the_page_are_in_the_order_of_time_where_a_clock_was_set_back(tmp_path: Path) -> None:
    earlier = msgspec.structs.replace(PUBLISHED, at="2026-11-15T11:34:56+00:00", checkpoint=CheckpointId(43))
    told = document(folder_of(tmp_path, STARTED, PUBLISHED, earlier).look())["epochs"]
    assert told["checkpoint"] == [43, PUBLISHED.checkpoint]
    assert told["at"][1] > 0
