"""Snapshot expiry and orphan cleanup on real tables: what goes, and what must stay."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pypaimon.consumer.consumer import Consumer

from penstock.errors import ConfigError
from penstock.sinks.paimon.open import open_table
from penstock.sinks.paimon.sink import Paimon
from penstock.sinks.paimon.upkeep import orphans
from penstock.sinks.paimon.upkeep.files import KeptTable
from penstock.sinks.upkeep import Upkeep
from tests.support.second_reader import files_of, ids_at, root_of, snapshot_json, snapshots_of
from tests.support.tables import SCHEMA, commit, data_files, epoch, every_file, ids_of, rows, write
from tests.support.upkeep_tables import EAGER, Story, newest_commit, story, travel

__all__ = ["story"]

COMPACT = replace(EAGER, manifests=None, expire=False)
EXPIRE = Upkeep(manifests=None, small_files=None, snapshots=2, snapshots_for=0.0)
ORPHANS = Upkeep(manifests=None, small_files=None, expire=False, orphans_after="1 d")


def tomorrow() -> float:
    return time.time() + 2 * 86_400


def table_of(sink: Paimon):  # type: ignore[no-untyped-def]
    return open_table(sink.warehouse, sink.table)


def test_old_snapshots_go_and_the_others_stay_readable(story: Story) -> None:
    story.commit(6)
    report = story.keeper(EXPIRE).step()
    assert (report.snapshots_expired, report.held_by) == (4, None)
    assert snapshots_of(story.sink) == [5, 6]
    story.assert_whole()


def test_expiry_leaves_exactly_the_files_that_are_needed(story: Story) -> None:
    story.commit(4)
    story.keeper(COMPACT).step()
    story.commit(2)
    story.keeper(EXPIRE).step()
    snapshots = [snapshot_json(story.sink, number) for number in snapshots_of(story.sink)]
    needed = {path.name for snapshot in snapshots for path in files_of(story.sink, snapshot)}
    assert data_files(story.sink) == needed
    assert story.keeper(ORPHANS, clock=tomorrow).step().orphans_removed == 0
    story.assert_whole()


def test_snapshots_younger_than_asked_for_stay(story: Story) -> None:
    story.commit(5)
    policy = replace(EXPIRE, snapshots_for="1 h")
    assert story.keeper(policy).step().snapshots_expired == 0
    assert story.keeper(policy, clock=lambda: time.time() + 7200).step().snapshots_expired == 3


def test_the_tables_own_options_count_where_the_policy_says_nothing(tmp_path: Path) -> None:
    options = {"snapshot.num-retained.min": "3", "snapshot.time-retained": "10 min"}
    sink = Paimon(str(tmp_path), "shop.words", options=options)
    sink.check(SCHEMA)
    story = Story(sink)
    story.commit(5)
    policy = Upkeep(manifests=None, small_files=None)
    assert story.keeper(policy).step().snapshots_expired == 0
    assert story.keeper(policy, clock=lambda: time.time() + 660).step().snapshots_expired == 2


def test_the_newest_snapshot_of_the_query_stays_whatever_others_commit(story: Story) -> None:
    """C4: it is the only proof of what was committed."""
    story.commit(2)
    others = story.sink.open_committer("somebody")
    for checkpoint in range(101, 106):
        commit(others, checkpoint, epoch(story.sink, checkpoint))
    report = story.keeper(EXPIRE).step()
    assert (report.snapshots_expired, report.held_by) == (1, story.user)
    assert snapshots_of(story.sink)[0] == 2
    receipt = newest_commit(story.sink.open_committer(story.user), 2)
    assert receipt is not None
    assert receipt.checkpoint == 2
    story.commit()  # the committer that read up to snapshot 2 finds all that followed


def test_nothing_expires_before_the_query_has_committed(story: Story) -> None:
    others = story.sink.open_committer("somebody")
    for checkpoint in range(1, 5):
        commit(others, checkpoint, epoch(story.sink, checkpoint))
    newest_commit(story.committer)
    assert story.keeper(EXPIRE).step().snapshots_expired == 0
    story.commit()


def test_snapshots_of_another_query_stay_until_it_is_forgotten(story: Story) -> None:
    """C4: that query may be stopped, with a commit that its checkpoint does not know of."""
    stopped = Story(story.sink, "penstock-stopped-words")
    commit(stopped.committer, 1000, epoch(story.sink, 1000))
    story.commit(4)
    report = story.keeper(EXPIRE).step()
    assert (report.snapshots_expired, report.held_by) == (0, "penstock-stopped-words")
    assert story.keeper(EXPIRE, forgotten=["penstock-stopped-words"]).step().snapshots_expired == 3


def test_a_tag_keeps_its_rows_when_its_snapshot_goes(story: Story) -> None:
    story.commit(3)
    table_of(story.sink).create_tag("monday", 3)
    story.commit(2)
    for _ in range(3):
        story.keeper(EAGER).step()
        story.commit()
    assert 3 not in snapshots_of(story.sink)
    assert travel(story.sink, {"scan.tag-name": "monday"}) == ids_of([1, 2, 3])
    story.assert_whole()
    story.keeper(ORPHANS, clock=tomorrow).step()
    assert travel(story.sink, {"scan.tag-name": "monday"}) == ids_of([1, 2, 3])
    table_of(story.sink).delete_tag("monday")
    assert story.keeper(ORPHANS, clock=tomorrow).step().orphans_removed > 0
    story.assert_whole()


def test_a_tag_made_while_snapshots_expire_keeps_its_rows(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    story.commit(3)
    story.keeper(COMPACT).step()
    story.commit(2)
    real = KeptTable.set_earliest

    def tag_first(self: KeptTable, number: int) -> None:
        table_of(story.sink).create_tag("late", 2)
        real(self, number)

    monkeypatch.setattr(KeptTable, "set_earliest", tag_first)
    assert story.keeper(EXPIRE).step().snapshots_expired > 0
    assert travel(story.sink, {"scan.tag-name": "late"}) == ids_of([1, 2])


def test_a_branch_keeps_its_rows(story: Story) -> None:
    story.commit(3)
    table = table_of(story.sink)
    table.create_tag("base", 3)
    table.branch_manager().create_branch("work", "base")
    table.delete_tag("base")
    story.commit(2)
    for _ in range(2):
        story.keeper(EAGER).step()
        story.commit()
    story.keeper(ORPHANS, clock=tomorrow).step()
    (held,) = (root_of(story.sink) / "branch" / "branch-work" / "snapshot").glob("snapshot-*")
    assert ids_at(story.sink, json.loads(held.read_text())) == ids_of([1, 2, 3])
    story.assert_whole()


def test_a_consumer_keeps_what_it_has_not_read(story: Story) -> None:
    story.commit(6)
    table_of(story.sink).consumer_manager().reset_consumer("report", Consumer(3))
    report = story.keeper(EXPIRE).step()
    assert (report.snapshots_expired, report.held_by) == (2, "consumer report")
    assert snapshots_of(story.sink)[0] == 3


def test_a_table_whose_changelogs_outlive_its_snapshots_keeps_all(story: Story) -> None:
    story.commit(5)
    folder = root_of(story.sink) / "changelog"
    folder.mkdir()
    (folder / "changelog-1").write_text("{}")
    report = story.keeper(replace(EXPIRE, orphans_after="1 d"), clock=tomorrow).step()
    assert report.snapshots_expired == report.orphans_removed == 0
    assert len(report.notes) == 2


def test_readers_find_the_earliest_snapshot_after_hundreds_expired(story: Story) -> None:
    """pypaimon looks at most 300 numbers ahead of where it believes the first snapshot to be."""
    story.commit(3)
    story.keeper(EXPIRE).step()
    assert (root_of(story.sink) / "snapshot" / "EARLIEST").read_text() == "2"
    assert table_of(story.sink).snapshot_manager().try_get_earliest_snapshot().id == 2


def leftovers(story: Story) -> set[Path]:
    """What crashes leave behind: data of a lost attempt, manifests and a snapshot that were never published."""
    writer = write(story.sink, 99, rows([198, 199]))
    assert writer
    root = root_of(story.sink)
    before = every_file(story.sink)
    name = "0d6a7277-91e7-4d4e-82b8-2cf653e11dbd"
    for path in (
        f"manifest/manifest-{name}-0",
        f"manifest/manifest-list-{name}-1",
        f"manifest/index-manifest-{name}-0",
        f"snapshot/.snapshot-9.{name}.tmp",
        f"bucket-0/data-{name}-0.parquet",
    ):
        (root / path).write_text("left over")
    return every_file(story.sink) - before


def test_files_that_nothing_refers_to_go_when_they_are_old(story: Story) -> None:
    story.commit(3)
    left = leftovers(story)
    assert story.keeper(ORPHANS).step().orphans_removed == 0
    assert story.keeper(ORPHANS, clock=tomorrow, dry_run=True).step().orphans_removed == len(left) + 1
    assert left < every_file(story.sink)
    assert story.keeper(ORPHANS, clock=tomorrow).step().orphans_removed == len(left) + 1
    assert not left & every_file(story.sink)
    story.assert_whole()


def test_files_with_other_names_are_nobodys_business(story: Story) -> None:
    story.commit(1)
    root = root_of(story.sink)
    kept = [root / "bucket-0" / "_SUCCESS", root / "notes.txt", root / "bucket-0" / "mine.parquet"]
    for path in kept:
        path.write_text("mine")
    assert story.keeper(ORPHANS, clock=tomorrow).step().orphans_removed == 0
    assert all(path.exists() for path in kept)


def test_files_that_wait_for_their_commit_stay_however_old_they_are(story: Story) -> None:
    """C4: also those of an unknown outcome, which wait until the table was asked."""
    story.commit(2)
    waiting = epoch(story.sink, 3)
    for path in every_file(story.sink):
        os.utime(path, (0, 0))
    assert story.keeper(ORPHANS, pending=lambda: waiting).step().orphans_removed == 0
    commit(story.committer, 3, waiting)
    story.checkpoint = 3
    story.assert_whole()


def test_a_commit_while_snapshots_are_read_loses_no_file(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """C4: what waits is asked first. It is committed when snapshots were read already, and waits no longer."""
    story.commit(2)
    waiting = epoch(story.sink, 3)
    for path in every_file(story.sink):
        os.utime(path, (0, 0))
    read = orphans.named_files

    def read_then_commit(table: KeptTable) -> set[str]:
        named = read(table)
        commit(story.committer, 3, waiting)
        waiting.clear()
        return named

    monkeypatch.setattr(orphans, "named_files", read_then_commit)
    assert story.keeper(ORPHANS, pending=lambda: list(waiting)).step().orphans_removed == 0
    story.checkpoint = 3
    story.assert_whole()


def test_no_file_goes_while_something_cannot_be_read(story: Story) -> None:
    story.commit(2)
    leftovers(story)
    before = every_file(story.sink)
    snapshot = root_of(story.sink) / "snapshot" / "snapshot-1"
    text = snapshot.read_text()
    snapshot.write_text(text[:40])
    (failure,) = story.keeper(ORPHANS, clock=tomorrow).step().failures
    assert "No file was removed" in failure
    assert every_file(story.sink) == before


def test_orphans_are_looked_for_once_an_hour(story: Story) -> None:
    story.commit(1)
    now = [tomorrow()]
    keeper = story.keeper(ORPHANS, clock=lambda: now[0])
    keeper.step()
    leftovers(story)
    now[0] += 3000
    assert keeper.step().orphans_removed == 0
    now[0] += 700
    assert keeper.step().orphans_removed > 0


@pytest.mark.parametrize(
    "options",
    [
        {"orphans_after": "10 min"},
        {"manifests": 1},
        {"small_files": 0},
        {"snapshots": 0},
        {"every": "soon"},
        {"every": 0},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Upkeep(**options)  # type: ignore[arg-type]
