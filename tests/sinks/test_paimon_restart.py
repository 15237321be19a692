"""Restarts of a whole query on a real table that other engines have changed meanwhile, or that is another one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.engine.checkpoints import Checkpoints
from penstock.errors import CommitFailed, TableMismatch, TablePositionMismatch
from penstock.protocol.ids import Generation
from penstock.sinks.paimon import commit as paimon_commit
from penstock.sinks.paimon.read import listed_files, read_table
from penstock.sinks.paimon.sink import Paimon
from penstock.sinks.paimon.upkeep.expire import expire
from penstock.sinks.paimon.upkeep.files import KeptTable
from penstock.sinks.paimon.upkeep.keeper import PaimonKeeper
from penstock.sinks.upkeep import Upkeep
from penstock.store import open_store
from penstock.testing.inline import InlineRun, stream_of
from tests.support.engine_jobs import SCHEMA, FakeClock, batches_of
from tests.support.tables import commit, context


def table_in(folder: Path, name: str = "shop.rows") -> Paimon:
    return Paimon(str(folder / "lake"), name, upkeep=False)


def output(sink: Paimon) -> pen.Output:
    return stream_of(SCHEMA).filter(lambda batch: [True] * batch.num_rows, name="all").write(sink, name="out")


def finish(run: InlineRun, sink: Paimon, folder: Path, **options: Any) -> None:
    assert run.start(output(sink), checkpoint=folder / "checkpoint", **options).await_termination(60)


def numbers(sink: Paimon) -> Counter[int]:
    return Counter(read_table(sink.warehouse, sink.table)["number"].to_pylist())


def others_commit_and_expire(sink: Paimon, *, compact: bool = False) -> None:
    """Another engine appends nothing new but a snapshot, perhaps rewrites all files, and keeps the newest snapshot."""
    writer = sink.open_writer(context(1), SCHEMA)

    writer.write(pa.record_batch([[0], [-1]], schema=SCHEMA))
    stranger = sink.open_committer("stranger")
    stranger.fence(Generation(1))
    commit(stranger, 1, writer.prepare())
    if compact:
        report = PaimonKeeper(sink.warehouse, sink.table, Upkeep(small_files=2, expire=False)).step()
        assert report.files_compacted
    table = KeptTable(sink.warehouse, sink.table)
    expire(table, table.snapshot_ids()[-1], lambda: False)


def die_after_the_first_commit(sink: Paimon, folder: Path, monkeypatch: pytest.MonkeyPatch) -> InlineRun:
    """The commit lands, no answer comes back, and the query gives up before it learns so."""
    run = InlineRun(batches_of(50, 1), FakeClock())
    found = paimon_commit.PaimonCommitter._receipt_in_table
    asked = paimon_commit.PaimonCommitter.commits

    def lost(self: paimon_commit.PaimonCommitter) -> Any:
        found(self)
        monkeypatch.setattr(paimon_commit.PaimonCommitter, "commits", unreachable)
        raise TimeoutError("no answer")

    def unreachable(self: paimon_commit.PaimonCommitter, *_: object) -> Any:
        raise TimeoutError("no answer")

    monkeypatch.setattr(paimon_commit.PaimonCommitter, "_receipt_in_table", lost)
    with pytest.raises(CommitFailed):
        finish(run, sink, folder)
    monkeypatch.setattr(paimon_commit.PaimonCommitter, "_receipt_in_table", found)
    monkeypatch.setattr(paimon_commit.PaimonCommitter, "commits", asked)
    newest = Checkpoints(open_store(str(folder / "checkpoint"))).newest()
    assert newest is not None
    assert newest.sinks["out"].pending
    return run


def test_a_first_commit_whose_snapshot_expired_is_known_by_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table_in(tmp_path)
    run = die_after_the_first_commit(sink, tmp_path, monkeypatch)
    others_commit_and_expire(sink)
    finish(run, sink, tmp_path)
    assert numbers(sink) == Counter([-1, *range(50)])
    files = listed_files(sink.warehouse, sink.table)
    assert len(files) == len(set(files))
    finish(run, sink, tmp_path)
    assert numbers(sink) == Counter([-1, *range(50)])


def test_a_first_commit_that_expired_and_was_compacted_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table_in(tmp_path)
    run = die_after_the_first_commit(sink, tmp_path, monkeypatch)
    others_commit_and_expire(sink, compact=True)
    with pytest.raises(TablePositionMismatch, match="the table cannot tell"):
        finish(run, sink, tmp_path)
    assert numbers(sink) == Counter([-1, *range(50)])


def test_a_query_that_waits_for_nothing_starts_although_its_snapshots_expired(tmp_path: Path) -> None:
    sink = table_in(tmp_path)
    run = InlineRun(batches_of(50, 2), FakeClock())
    run.batches = run.batches[:1]
    finish(run, sink, tmp_path)
    finish(run, sink, tmp_path)  # its manifest knows of the last commit now
    others_commit_and_expire(sink)
    run.batches = batches_of(50, 2)
    finish(run, sink, tmp_path)
    assert numbers(sink) == Counter([-1, *range(100)])


def test_an_older_checkpoint_is_not_restored_where_later_commits_may_have_expired(tmp_path: Path) -> None:
    sink = table_in(tmp_path)
    run = InlineRun(batches_of(50, 2), FakeClock())
    run.batches = run.batches[:1]
    finish(run, sink, tmp_path)
    finish(run, sink, tmp_path)
    older = Checkpoints(open_store(str(tmp_path / "checkpoint"))).ids()[-1]
    run.batches = batches_of(50, 2)
    finish(run, sink, tmp_path)
    others_commit_and_expire(sink)
    with pytest.raises(TablePositionMismatch, match="the table cannot tell"):
        finish(run, sink, tmp_path, restore=int(older))
    assert numbers(sink) == Counter([-1, *range(100)])


def test_a_sink_that_points_to_another_table_is_told_so_and_nothing_is_made(tmp_path: Path) -> None:
    run = InlineRun(batches_of(50, 1), FakeClock())
    finish(run, table_in(tmp_path), tmp_path)
    before = {path for path in (tmp_path / "lake").rglob("*") if ".tmp" not in path.name}
    with pytest.raises(TableMismatch, match=r"has written to table shop\.rows; .* table other\.rows .* does not exist"):
        finish(run, table_in(tmp_path, "other.rows"), tmp_path)
    assert {path for path in (tmp_path / "lake").rglob("*") if ".tmp" not in path.name} == before


def test_a_table_that_was_dropped_and_made_again_is_told_from_one_that_was_renamed(tmp_path: Path) -> None:
    run = InlineRun(batches_of(50, 1), FakeClock())
    finish(run, table_in(tmp_path), tmp_path)
    table_in(tmp_path, "shop.second").check(SCHEMA)
    with pytest.raises(TableMismatch, match=r"shop\.second .*another one"):
        finish(run, table_in(tmp_path, "shop.second"), tmp_path)
    (tmp_path / "lake/shop.db/rows").rename(tmp_path / "lake/shop.db/renamed")
    finish(run, table_in(tmp_path, "shop.renamed"), tmp_path)
    assert numbers(table_in(tmp_path, "shop.renamed")) == Counter(range(50))
