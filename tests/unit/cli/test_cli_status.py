"""`penstock status` and its kin: the right word and exit code for each state, and text that does no harm."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from penstock.cli import main
from penstock.engine.checkpoints import Checkpoints
from penstock.errors import StageFailed, StorageFailed
from penstock.observe.events import EpochFailed, Event, QueryStopped, encode_event
from penstock.observe.folder import Folder
from penstock.observe.journal import append_line
from penstock.observe.model import QueryView
from penstock.observe.process import this_process
from penstock.protocol.ids import CheckpointId
from penstock.protocol.report import ErrorReport
from penstock.store import open_store
from penstock.testing.inline import InlineRun
from tests.support.engine_jobs import FakeClock, batches_of, crash_in_job, keyed_slow
from tests.unit.observe.test_events import AT, PUBLISHED, STARTED

HOSTILE = "\x1b[2J<script>alert(1)</script>\n" * 1000


def penstock(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def write(folder: Path, *events: Event) -> Path:
    store = open_store(str(folder))
    for event in events:
        append_line(store, encode_event(event))
    return folder


@pytest.fixture
def finished(tmp_path: Path, table: str) -> Path:
    clock = FakeClock()
    run = InlineRun(batches_of(500, 3), clock)
    run.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch="100 ms").await_termination(60)
    return tmp_path


def test_a_finished_query_is_ended_as_asked(finished: Path) -> None:
    result = penstock("status", finished)
    assert result.exit_code == 3
    assert ": finished since" in result.output
    assert "its input was used up" in result.output


def test_the_document_has_what_supervisors_ask_for(finished: Path) -> None:
    told = json.loads(penstock("status", finished, "--json").output)
    assert (told["status"], told["health"], told["exit_code"], told["alive"]) == ("finished", "ended", 3, False)
    assert (told["rows_in_flight"], told["backlog_s"], told["uncommitted"]) == (0, 0.0, 0)
    assert {stage["name"] for stage in told["stages"]}


def test_a_failed_query_is_dead_and_tells_what_to_do(tmp_path: Path, table: str) -> None:
    clock = FakeClock()
    run = InlineRun(batches_of(500, 2), clock, prepare=crash_in_job(set(range(2, 99))))
    with pytest.raises(StageFailed):
        run.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch="100 ms").await_termination(60)
    result = penstock("status", tmp_path)
    assert result.exit_code == 5
    assert "failed [PEN-033]" in result.output
    assert "next step" in result.output
    listed = penstock("errors", tmp_path)
    assert listed.exit_code == 0
    assert "which ended the run" in listed.output
    told = json.loads(penstock("errors", tmp_path, "--json").output)
    assert [one["kind"] for one in told["errors"]][-1] == "query"
    assert told["errors"][-1]["next_step"]


def test_a_folder_without_a_query_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    assert penstock("status", tmp_path).exit_code == 6


def test_epochs_are_listed_with_where_their_time_went(finished: Path) -> None:
    result = penstock("epochs", finished, "--last", 3)
    assert sum(" epoch  " in line for line in result.output.splitlines()) == 3
    told = json.loads(penstock("epochs", finished, "--last", 3, "--json").output)
    assert len(told) == 3
    assert told[-1]["stages"]


def test_top_shows_stages_and_edges(finished: Path) -> None:
    result = penstock("top", finished, "--count", 1)
    assert result.exit_code == 0
    assert "stage" in result.output
    assert "-to-" in result.output


def test_an_error_of_the_command_is_a_document_too(tmp_path: Path) -> None:
    result = penstock("checkpoints", tmp_path, "--json")
    assert result.exit_code == 1
    assert json.loads(result.output)["error"]["code"] == "PEN-014"


@pytest.mark.parametrize("command", [["status"], ["errors"], ["epochs"], ["top", "--count", "1"]])
def test_a_hostile_folder_gives_a_terminal_no_commands(tmp_path: Path, command: list[str]) -> None:
    error = ErrorReport(HOSTILE, HOSTILE, HOSTILE, HOSTILE)
    write(
        tmp_path,
        msgspec.structs.replace(STARTED, name=HOSTILE),
        PUBLISHED,
        EpochFailed(at=HOSTILE, checkpoint=CheckpointId(1), attempt=1, code=HOSTILE, message=HOSTILE),
        QueryStopped(at=HOSTILE, reason="failed", error=error),
    )
    result = penstock(command[0], tmp_path, *command[1:])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "\x1b" not in result.output
    assert len(result.output) < 200_000


def test_a_process_that_was_killed_is_named(tmp_path: Path) -> None:
    gone = msgspec.structs.replace(this_process(), began="1")
    write(tmp_path, msgspec.structs.replace(STARTED, process=gone), PUBLISHED)
    result = penstock("status", tmp_path)
    assert result.exit_code == 5
    assert "killed since" in result.output
    assert f"process {gone.pid}" in result.output
    assert AT in result.output


def test_a_checkpoint_that_cannot_be_read_is_told(finished: Path) -> None:
    newest = max((finished / "manifests").iterdir())
    newest.write_bytes(b"{")
    assert f"manifests/{newest.name} [PEN-012]" in penstock("status", finished).output
    (told,) = json.loads(penstock("status", finished, "--json").output)["unreadable"]
    assert told["code"] == "PEN-012"


def test_a_folder_that_cannot_be_reached_does_not_hide_the_others(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Folder.look

    def fails_for_gone(place: Folder) -> QueryView:
        if place._store.url.endswith("/gone"):
            raise StorageFailed("no answer", cause="", next_step="", path="gone")
        return look(place)

    monkeypatch.setattr(Folder, "look", fails_for_gone)
    result = penstock("top", finished / "gone", finished, "--count", "1")
    assert result.exit_code == 1
    assert "no answer" in result.output
    assert "-to-" in result.output


def test_a_checkpoint_that_expires_while_all_are_listed_is_left_out(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query runs: between the list and the reading it went on."""
    ids, kept = Checkpoints.ids, Checkpoints(open_store(str(finished))).ids()
    monkeypatch.setattr(Checkpoints, "ids", lambda checkpoints: [CheckpointId(999), *ids(checkpoints)])
    result = penstock("checkpoints", finished, "--json")
    assert result.exit_code == 0
    assert [told["checkpoint"] for told in json.loads(result.output)] == kept
