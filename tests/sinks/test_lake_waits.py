"""A committer of a lake that hangs, fails or answers late: epochs go on, and every row is in the table once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as pen
from penstock.errors import CommitFailed
from penstock.sinks.delta.commit import DeltaCommitter
from penstock.sinks.iceberg.commit import IcebergCommitter
from penstock.sinks.lake.commit import LakeCommitter
from penstock.testing.inline import InlineRun, stream_of
from tests.sinks.test_lakes_engine import delta, iceberg
from tests.support.engine_jobs import SCHEMA, FakeClock, batches_of

LAKES = [pytest.param(delta, DeltaCommitter, id="delta"), pytest.param(iceberg, IcebergCommitter, id="iceberg")]


def around(
    monkeypatch: pytest.MonkeyPatch, committer: type[LakeCommitter[Any]], act: Callable[[Callable[[], None]], None]
) -> None:
    """Puts `act` in the place of each publish of a checkpoint; it gets the real one."""
    real = committer._publish

    def publish(self: Any, change: Any, facts: Any, checkpoint: Any) -> None:
        if checkpoint is None:
            real(self, change, facts, checkpoint)
        else:
            act(lambda: real(self, change, facts, checkpoint))

    monkeypatch.setattr(committer, "_publish", publish)


@pytest.mark.parametrize(("lake", "committer"), LAKES)
def test_epochs_go_on_while_a_commit_hangs(
    lake: Any, committer: type[LakeCommitter[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, epochs = threading.Event(), []

    def hang(publish: Callable[[], None]) -> None:
        assert go_on.wait(60), "epochs waited for the commit"
        publish()

    around(monkeypatch, committer, hang)
    sink, numbers = lake(tmp_path)

    def seen(event: object) -> None:
        if isinstance(event, pen.events.EpochPublished):
            epochs.append(event)
            if len(epochs) == 4:
                go_on.set()

    run = InlineRun(batches_of(50, 4), FakeClock())
    query = run.start(stream_of(SCHEMA).write(sink), checkpoint=tmp_path / "checkpoint", on_event=seen)
    query.await_termination(120)
    assert Counter(numbers()) == Counter(range(200))
    assert any(commit.last > commit.first for commit in query.commits()), "one commit takes what waited"


@pytest.mark.parametrize(("lake", "committer"), LAKES)
def test_a_commit_that_fails_or_answers_late_is_made_once(
    lake: Any, committer: type[LakeCommitter[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = iter(["no", "late", "yes", "late"])

    def fail(publish: Callable[[], None]) -> None:
        how = next(tries, "yes")
        if how != "no":
            publish()
        if how != "yes":
            raise TimeoutError("no answer")

    around(monkeypatch, committer, fail)
    sink, numbers = lake(tmp_path)
    run = InlineRun(batches_of(50, 4), FakeClock())
    run.start(stream_of(SCHEMA).write(sink), checkpoint=tmp_path / "checkpoint").await_termination(120)
    assert Counter(numbers()) == Counter(range(200))


@pytest.mark.parametrize(("lake", "committer"), LAKES)
def test_a_table_that_always_fails_stops_the_query_which_goes_on_later(
    lake: Any, committer: type[LakeCommitter[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(publish: Callable[[], None]) -> None:
        raise OSError("no route to the table")

    sink, numbers = lake(tmp_path)
    output = stream_of(SCHEMA).write(sink)
    run = InlineRun(batches_of(50, 2), FakeClock())
    with monkeypatch.context() as patched:
        around(patched, committer, fail)
        with pytest.raises(CommitFailed, match="no route to the table"):
            run.start(output, checkpoint=tmp_path / "checkpoint").await_termination(120)
    run.start(output, checkpoint=tmp_path / "checkpoint").await_termination(120)
    assert Counter(numbers()) == Counter(range(100))
