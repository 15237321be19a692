"""Commits and upkeep in threads of their own, as in a query, and in processes of their own, as with the command."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.sinks.paimon import local
from penstock.sinks.paimon.upkeep.files import KeptTable
from tests.support.second_reader import snapshots_of
from tests.support.upkeep_tables import EAGER, Story, metadata_bytes, story

__all__ = ["story"]


def test_commits_and_upkeep_in_two_threads_lose_and_double_nothing(story: Story) -> None:
    story.commit()
    keeper, ended = story.keeper(), threading.Event()

    def keep() -> int:
        count = 0
        while not ended.is_set():
            count += keeper.step().files_compacted
        return count

    with ThreadPoolExecutor(1) as pool:
        compacted = pool.submit(keep)
        try:
            story.commit(30)
        finally:
            ended.set()
    assert compacted.result() > 0
    story.assert_whole()


def test_a_commit_waits_for_upkeep_of_its_process_only_while_that_publishes(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C2: rewriting may take minutes; a commit gets through meanwhile."""
    from penstock.sinks.paimon.upkeep import compact

    story.commit(3)
    rewriting, go_on = threading.Event(), threading.Event()
    real = compact.rewrite

    def slow(*args: object) -> object:
        rewriting.set()
        assert go_on.wait(30)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(compact, "rewrite", slow)
    thread = threading.Thread(target=story.keeper().step)
    thread.start()
    assert rewriting.wait(30)
    story.commit(2)
    go_on.set()
    thread.join()
    story.assert_whole()
    assert KeptTable(story.sink.warehouse, story.sink.table).latest().commit_user == "penstock.upkeep"


def test_a_commit_of_another_process_wins_or_loses_by_the_link_alone(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C4: locks of one process mean nothing to the other; here a process commits right before upkeep's link."""
    story.commit(3)
    raced: list[str] = []
    real = local.link

    def link(hidden, path):  # type: ignore[no-untyped-def]
        if path.name.startswith("snapshot-") and not raced:
            raced.append(path.name)
            subprocess.run([sys.executable, "-c", OTHER, story.sink.warehouse, story.user], check=True)
        return real(hidden, path)

    monkeypatch.setattr(local, "link", link)
    story.keeper().step()
    assert raced == ["snapshot-4"]
    story.checkpoint = 4
    story.assert_whole()


OTHER = """
import sys
from penstock.sinks.paimon.sink import Paimon
from tests.support.tables import commit, epoch
sink = Paimon(sys.argv[1], "shop.words")
commit(sink.open_committer(sys.argv[2]), 4, epoch(sink, 4))
"""


def test_the_metadata_of_a_table_stays_small_over_many_commits(story: Story) -> None:
    """A short form of benchmarks/upkeep.py: manifests, snapshots and files do not grow with the number of commits."""
    keeper = story.keeper(EAGER)
    sizes = []
    for _ in range(6):
        story.commit(6)
        keeper.step()
        sizes.append(metadata_bytes(story.sink))
    assert max(sizes[2:]) < 1.5 * sizes[1]
    assert len(snapshots_of(story.sink)) <= 4
    table = KeptTable(story.sink.warehouse, story.sink.table)
    assert len(table.manifests(table.latest())) <= 3
    story.assert_whole()
