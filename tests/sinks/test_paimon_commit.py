"""Commits to a real table: once each, in order, readable, and what abort may remove."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import CorruptFile, Fenced, PenstockError, StorageFailed, TableMismatch
from penstock.sinks.base import Committable
from penstock.sinks.paimon.open import open_table
from penstock.sinks.paimon.private import TableFiles
from penstock.sinks.paimon.read import listed_files, newest_snapshot, read_table
from penstock.sinks.paimon.sink import Paimon
from tests.support.tables import (
    SCHEMA,
    assert_no_file_is_listed_twice,
    commit,
    context,
    data_files,
    epoch,
    every_file,
    ids_in,
    ids_of,
    newest,
    rows,
    write,
)


def test_rows_can_be_read_once_they_are_committed(sink: Paimon) -> None:
    committables = write(sink, 1, rows([1, 2]), rows([3]))
    assert ids_in(sink) == {}
    receipt = commit(sink.open_committer("me"), 1, committables)
    assert ids_in(sink) == {1: 1, 2: 1, 3: 1}
    assert (receipt.checkpoint, receipt.snapshot, receipt.rows, receipt.files) == (1, 1, 3, 1)


def test_a_committable_tells_its_rows_and_bytes(sink: Paimon) -> None:
    (committable,) = write(sink, 1, rows([1, 2]))
    (file,) = (path for path in every_file(sink) if path.suffix == ".parquet")
    assert (committable.rows, committable.bytes) == (2, file.stat().st_size)


def test_committing_the_same_checkpoint_twice_adds_its_rows_once(sink: Paimon) -> None:
    """C4: also by a committer that was opened later and knows nothing."""
    committables = epoch(sink, 1)
    first = sink.open_committer("me")
    receipts = [commit(first, 1, committables), commit(first, 1, committables)]
    receipts.append(commit(sink.open_committer("me"), 1, committables))
    assert receipts == [receipts[0]] * 3
    assert ids_in(sink) == ids_of([1])
    assert_no_file_is_listed_twice(sink)


def test_a_checkpoint_older_than_the_newest_commit_is_answered_with_the_newest(sink: Paimon) -> None:
    committer = sink.open_committer("me")
    older = epoch(sink, 1)
    newest = commit(committer, 2, epoch(sink, 2))
    assert commit(committer, 1, older) == newest


def test_another_process_commits_what_this_one_prepared(sink: Paimon, tmp_path: Path) -> None:
    """C9: the writer's process is gone; all that is left is the bytes in the checkpoint."""
    payload = tmp_path / "payload"
    script = (
        "import sys; from pathlib import Path; from penstock.sinks.paimon.sink import Paimon\n"
        "from tests.support.tables import rows, write\n"
        "(one,) = write(Paimon(sys.argv[1], 'shop.words'), 1, rows([1, 2]))\n"
        "Path(sys.argv[2]).write_bytes(one.payload)"
    )
    subprocess.run([sys.executable, "-c", script, sink.warehouse, str(payload)], check=True)
    committable = Committable(payload.read_bytes(), rows=2, bytes=0)
    assert commit(sink.open_committer("me"), 1, [committable]).rows == 2
    assert ids_in(sink) == {1: 1, 2: 1}


def test_a_committable_is_small_whatever_its_rows_hold(sink: Paimon) -> None:
    (committable,) = write(sink, 1, pa.record_batch([[1], ["x" * 5_000_000]], schema=SCHEMA))
    assert len(committable.payload) < 1000


def test_nothing_to_commit_makes_no_snapshot(sink: Paimon) -> None:
    receipt = commit(sink.open_committer("me"), 1, [])
    assert (receipt.checkpoint, receipt.snapshot) == (1, None)
    assert newest(sink.open_committer("me")) is None


def test_a_writer_without_rows_hands_over_nothing(sink: Paimon) -> None:
    before = every_file(sink)
    assert write(sink, 1) == []
    assert write(sink, 1, rows([])) == []
    assert every_file(sink) == before


def test_the_table_tells_the_newest_commit_of_its_user_among_others(sink: Paimon) -> None:
    ours, others = sink.open_committer("me"), sink.open_committer("other")
    commit(ours, 4, epoch(sink, 4))
    for checkpoint in (8, 9):
        commit(others, checkpoint, epoch(sink, checkpoint))
    receipt = newest(sink.open_committer("me"))
    assert receipt is not None
    assert (receipt.checkpoint, receipt.snapshot, receipt.rows, receipt.files) == (4, 1, 2, 2)
    assert newest(sink.open_committer("nobody")) is None


def test_one_snapshot_can_be_read_while_commits_go_on(sink: Paimon) -> None:
    committer = sink.open_committer("me")
    assert newest_snapshot(sink.warehouse, sink.table) is None
    commit(committer, 1, epoch(sink, 1))
    snapshot = newest_snapshot(sink.warehouse, sink.table)
    commit(committer, 2, epoch(sink, 2))
    assert len(listed_files(sink.warehouse, sink.table, snapshot)) == 2
    assert sorted(read_table(sink.warehouse, sink.table, snapshot)["id"].to_pylist()) == [2, 3]


def test_properties_can_be_read_back_from_the_snapshot(sink: Paimon) -> None:
    """C7: the table's watermark travels as a property."""
    commit(sink.open_committer("me"), 1, epoch(sink, 1), **{"penstock.watermark": "17"})
    snapshot = open_table(sink.warehouse, sink.table).snapshot_manager().get_latest_snapshot()
    assert snapshot.properties == {"penstock.watermark": "17"}
    assert (snapshot.commit_user, snapshot.commit_identifier) == ("me", 1)


def test_a_driver_that_does_not_lead_commits_nothing_and_leaves_nothing_behind(sink: Paimon) -> None:
    """C9"""
    committer = sink.open_committer("me")
    commit(committer, 1, epoch(sink, 1))
    committables = epoch(sink, 2)
    before = every_file(sink)
    with pytest.raises(Fenced):
        commit(committer, 2, committables, still_leader=lambda: False)
    assert every_file(sink) == before
    assert ids_in(sink) == ids_of([1])


def test_an_error_of_the_leadership_question_stops_the_commit(sink: Paimon) -> None:
    def unreachable() -> bool:
        raise StorageFailed("the generation cannot be read")

    committables = epoch(sink, 1)
    before = every_file(sink)
    with pytest.raises(StorageFailed, match="generation"):
        commit(sink.open_committer("me"), 1, committables, still_leader=unreachable)
    assert every_file(sink) == before


def test_no_temporary_file_is_left_by_a_commit(sink: Paimon) -> None:
    commit(sink.open_committer("me"), 1, epoch(sink, 1))
    assert [path for path in every_file(sink) if path.suffix == ".tmp"] == []


def test_a_snapshot_and_all_it_names_are_durable_before_it_is_visible(
    sink: Paimon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C2: once acknowledged, the checkpoint stops carrying the committables."""
    from penstock.sinks.paimon import local as paimon_local

    synced: list[str] = []
    real = paimon_local.sync
    monkeypatch.setattr(paimon_local, "sync", lambda path: (synced.append(path.name), real(path)))
    committables = epoch(sink, 1)
    assert data_files(sink) < set(synced)
    committer = sink.open_committer("me")

    def visible() -> bool:
        snapshots = Path(sink.warehouse, "shop.db/words/manifest").iterdir()
        assert {path.name for path in snapshots} < set(synced)
        return True

    commit(committer, 1, committables, still_leader=visible)
    assert synced[-1] == "snapshot"


def test_a_failed_commit_can_be_tried_again(sink: Paimon, monkeypatch: pytest.MonkeyPatch) -> None:
    committer = sink.open_committer("me")
    committables = epoch(sink, 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(TableFiles, "commit", full)
        with pytest.raises(StorageFailed, match="No space left"):
            commit(committer, 1, committables)
    assert newest(committer) is None
    commit(committer, 1, committables)
    assert ids_in(sink) == ids_of([1])


def test_aborting_a_writer_removes_its_files(sink: Paimon) -> None:
    """C5"""
    before = every_file(sink)
    writer = sink.open_writer(context(1), SCHEMA)
    writer.write(rows([1]))
    writer.abort()
    assert every_file(sink) == before


def test_aborting_a_writer_after_prepare_removes_its_files(sink: Paimon) -> None:
    before = every_file(sink)
    writer = sink.open_writer(context(1), SCHEMA)
    writer.write(rows([1]))
    writer.prepare()
    assert every_file(sink) != before
    writer.abort()
    assert every_file(sink) == before


def test_aborting_committables_removes_their_files_only(sink: Paimon) -> None:
    """C5: files of a stale attempt go, those of the winning attempt stay."""
    committer = sink.open_committer("me")
    winner, stale = epoch(sink, 1), epoch(sink, 1)
    commit(committer, 1, winner)
    kept = len(data_files(sink)) - 2
    committer.abort(stale)
    assert len(data_files(sink)) == kept
    assert ids_in(sink) == ids_of([1])


def test_aborting_what_the_table_lists_removes_nothing(sink: Paimon) -> None:
    committer = sink.open_committer("me")
    committables = epoch(sink, 1)
    commit(committer, 1, committables)
    committer.abort(committables)
    assert ids_in(sink) == ids_of([1])


def test_a_damaged_committable_is_named(sink: Paimon) -> None:
    (committable,) = write(sink, 1, rows([1]))
    for payload in (b"", b"\x63" + committable.payload[1:], committable.payload[:40]):
        with pytest.raises(CorruptFile, match="cannot be read"):
            commit(sink.open_committer("me"), 1, [Committable(payload, 1, 1)])


def test_a_writer_of_a_table_that_was_dropped_says_so(tmp_path: Path) -> None:
    with pytest.raises(TableMismatch, match=r"no table shop\.words"):
        Paimon(str(tmp_path), "shop.words").open_writer(context(1), SCHEMA)


def test_a_full_disk_is_told_by_the_writer(sink: Paimon, monkeypatch: pytest.MonkeyPatch) -> None:
    from pypaimon.filesystem.local_file_io import LocalFileIO

    def full(*_: object, **__: object) -> None:
        try:
            raise OSError(28, "No space left on device")
        except OSError as error:
            raise RuntimeError("Failed to write Parquet file") from error

    before = every_file(sink)
    monkeypatch.setattr(LocalFileIO, "write_parquet", full)
    writer = sink.open_writer(context(1), SCHEMA)
    writer.write(rows([1]))
    with pytest.raises(PenstockError, match="disk is full"):
        writer.prepare()
    assert every_file(sink) == before
