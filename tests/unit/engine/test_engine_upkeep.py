"""Upkeep beside a query: off its path, never its end."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from penstock.engine.upkeep import PAUSE_S_MAX, TableUpkeep, Upkeeping
from penstock.observe.events import Committed, Event, TableKept, UpkeepFailed
from penstock.sinks.paimon.read import listed_files, read_table
from penstock.sinks.paimon.sink import Paimon
from penstock.sinks.upkeep import Upkeep, UpkeepReport
from penstock.testing.inline import InlineRun, stream_of

DID = UpkeepReport(manifests_merged=3, manifests_written=1)


@dataclass
class Script:
    """A keeper that answers as told."""

    answers: list[UpkeepReport | Exception]
    every_s: float = 30.0
    called: threading.Event = field(default_factory=threading.Event)
    stopped: bool = False

    def step(self) -> UpkeepReport:
        self.called.set()
        answer = self.answers.pop(0) if self.answers else UpkeepReport()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stop(self) -> None:
        self.stopped = True


def upkeep_of(*answers: UpkeepReport | Exception, every_s: float = 30.0) -> tuple[TableUpkeep, list[Event]]:
    events: list[Event] = []
    return TableUpkeep("words", Script(list(answers), every_s), events.append, clock=lambda: 7.0), events


def test_what_upkeep_did_is_an_event_and_nothing_is_none() -> None:
    table, events = upkeep_of(UpkeepReport(), DID)
    assert (table.step(), events) == (30.0, [])
    table.step()
    (event,) = events
    assert isinstance(event, TableKept)
    assert (event.sink, event.manifests_merged, event.duration_s) == ("words", 3, 0.0)


def test_more_to_do_is_done_at_once() -> None:
    table, _ = upkeep_of(UpkeepReport(files_compacted=5, files_written=1, more=True))
    assert table.step() == 0.0
    assert table.step() == 30.0


def test_what_cannot_be_done_is_said_once() -> None:
    note = UpkeepReport(notes=("small files stay",))
    table, events = upkeep_of(note, note, UpkeepReport(notes=("small files stay",), held_by="consumer report"))
    for _ in range(3):
        table.step()
    assert [event.held_by for event in events if isinstance(event, TableKept)] == [None, "consumer report"]


def test_a_failure_is_an_event_and_the_next_try_comes_later_and_later(caplog: pytest.LogCaptureFixture) -> None:
    failed = UpkeepReport(failures=("OSError: disk full",))
    table, events = upkeep_of(OSError("disk full"), *[failed] * 11, DID)
    pauses = [table.step() for _ in range(12)]
    assert pauses[:3] == [60.0, 120.0, 240.0]
    assert pauses[-1] == PAUSE_S_MAX
    assert [event.attempt for event in events if isinstance(event, UpkeepFailed)] == list(range(1, 13))
    assert "the query goes on" in caplog.text
    assert table.step() == 30.0
    assert isinstance(events[-1], TableKept)


def test_what_was_done_before_a_failure_is_told_as_well() -> None:
    table, events = upkeep_of(UpkeepReport(manifests_merged=3, failures=("OSError: disk full",)))
    assert table.step() == 60.0
    assert [type(event) for event in events] == [TableKept, UpkeepFailed]


def test_the_thread_ends_when_it_is_told_to() -> None:
    script = Script([OSError("disk full")], every_s=3600.0)
    upkeep = Upkeeping([TableUpkeep("words", script, lambda _: None)])
    upkeep.start()
    assert script.called.wait(10)
    upkeep.finish()
    assert script.stopped


def test_no_step_is_made_after_the_end() -> None:
    table, events = upkeep_of(DID)
    table.stop()
    assert table.step() is None
    assert events == []


SCHEMA = pa.schema([("id", pa.int64())])


def run_query(sink: Paimon, batches: int, checkpoint: str) -> list[Event]:
    events: list[Event] = []
    tables = [{"source": pa.table({"id": [2 * n, 2 * n + 1]}, schema=SCHEMA)} for n in range(batches)]
    run = InlineRun(tables, clock=lambda: 0.0)
    query = run.start(
        stream_of(SCHEMA).write(sink),
        on_event=events.append,
        checkpoint=checkpoint,
        parallelism=2,
        trigger="available_now",
    )
    query.await_termination(60)
    return events


def test_a_query_keeps_its_table_while_it_commits(tmp_path: object) -> None:
    """C10: each row once, and fewer files than commits."""
    policy = Upkeep(every=0.1, manifests=3, small_files=3, snapshots=2, snapshots_for=0.0)
    sink = Paimon(f"{tmp_path}/lake", "shop.words", upkeep=policy)
    events = run_query(sink, 30, f"{tmp_path}/checkpoint")
    assert not [event for event in events if isinstance(event, UpkeepFailed)]
    kept = [event for event in events if isinstance(event, TableKept)]
    assert sum(event.snapshots_expired for event in kept) > 0
    assert sum(event.files_compacted for event in kept) > 0
    assert any(isinstance(event, Committed) for event in events)
    assert sorted(read_table(sink.warehouse, sink.table)["id"].to_pylist()) == list(range(60))
    assert len(listed_files(sink.warehouse, sink.table)) < 30


def test_upkeep_that_always_fails_never_stops_the_query(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.sinks.paimon.upkeep.keeper import PaimonKeeper

    def broken(_: PaimonKeeper) -> UpkeepReport:
        raise RuntimeError("no upkeep today")

    monkeypatch.setattr(PaimonKeeper, "step", broken)
    sink = Paimon(f"{tmp_path}/lake", "shop.words")
    events = run_query(sink, 3, f"{tmp_path}/checkpoint")
    assert [event.message for event in events if isinstance(event, UpkeepFailed)] == ["RuntimeError: no upkeep today"]
    assert sorted(read_table(sink.warehouse, sink.table)["id"].to_pylist()) == list(range(6))
