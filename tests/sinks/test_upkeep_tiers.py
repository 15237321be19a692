"""How far upkeep merges the runs of a bucket: by the policy, by the table's options, and when nobody commits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.protocol.sorted_runs import Tiering
from penstock.sinks.paimon.upkeep import runs
from penstock.sinks.paimon.upkeep.files import KeptTable
from penstock.sinks.paimon.upkeep.keeper import PaimonKeeper
from penstock.sinks.paimon.upkeep.live import LiveFiles
from penstock.sinks.upkeep import Upkeep
from tests.sinks.test_upkeep_keyed import ONLY_RUNS, USER, Table


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def run_counts(table: Table, policy: Upkeep, commits: int) -> list[int]:
    """How many runs there are after each commit and a look at the table."""
    keeper = PaimonKeeper(table.sink.warehouse, table.sink.table, policy, own_user=USER)
    found = []
    for n in range(commits):
        table.commit(*((i, n, f"v{n}") for i in range(n % 3, 200, 3 if n else 1)))
        while keeper.step().more:
            pass
        found.append(len(runs.sorted_runs(table.entries())))
    return found


def test_merge_for_says_how_many_runs_readers_meet(tmp_path: Path) -> None:
    most = {}
    for merge_for in ("reads", None, "writes"):
        table = Table(tmp_path / str(merge_for))
        most[merge_for] = max(run_counts(table, replace(ONLY_RUNS, merge_for=merge_for), 12))  # type: ignore[arg-type]
        assert [row[0] for row in table.rows()] == list(range(200))
    assert most["reads"] == 1
    assert 1 < (most[None] or 0) < 4 < most["writes"] <= 8


def test_a_table_with_one_new_file_is_raised_for_reads_without_a_copy(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.commit((1, 1, "a"))
    (before,) = table.entries()
    keeper = PaimonKeeper(table.sink.warehouse, table.sink.table, replace(ONLY_RUNS, merge_for="reads"), own_user=USER)
    while (report := keeper.step()).more:
        assert report.bytes_compacted == 0
    (after,) = table.entries()
    assert (before.file.level, after.file.level, after.file.file_name) == (0, 5, before.file.file_name)


def test_the_policy_wins_over_the_options_of_the_table(tmp_path: Path) -> None:
    options = {"num-sorted-run.compaction-trigger": "3", "compaction.max-size-amplification-percent": "200"}
    table = Table(tmp_path, options=options)
    kept = KeptTable(table.sink.warehouse, table.sink.table)
    assert runs.tiering_of(kept) == Tiering(trigger=3, excess_percent=200)
    assert runs.tiering_of(kept, "reads") == Tiering(trigger=1, excess_percent=0)


@pytest.mark.parametrize("merge_for", [None, "writes"])
def test_runs_of_a_quiet_table_become_one_unless_writes_are_spared(tmp_path: Path, merge_for: Any) -> None:
    table, clock = Table(tmp_path), Clock()
    policy = replace(ONLY_RUNS, every=30.0, merge_for=merge_for)
    keeper = PaimonKeeper(table.sink.warehouse, table.sink.table, policy, own_user=USER, clock=clock)

    def look(after_s: float) -> int:
        clock.now += after_s
        while keeper.step().more:
            pass
        return len(runs.sorted_runs(table.entries()))

    table.commit(*((i, 0, "a") for i in range(2000)))
    table.commit((1, 1, "b"))
    assert look(0.0) == 2
    assert look(20.0) == 2  # the table was busy less than 30 s ago
    table.commit((2, 1, "c"))
    assert look(29.0) == 3
    assert look(29.0) == 3
    before = table.rows()
    assert look(30.0) == (1 if merge_for is None else 3)
    assert table.rows() == before
    assert table.rows()[1:3] == [(1, 1, "b"), (2, 1, "c")]


def test_a_quiet_table_is_merged_no_further_than_a_look_may_rewrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path)
    table.commit(*((i, 0, "a") for i in range(2000)))
    table.commit((1, 1, "b"))
    kept, live = KeptTable(table.sink.warehouse, table.sink.table), LiveFiles()
    live.advance(kept)
    assert len(runs.plan_runs(kept, live, quiet=True)[0]) == 1
    assert runs.plan_runs(kept, live, quiet=False)[0] == []
    monkeypatch.setattr(runs, "QUIET_BYTES_MAX", 100)
    assert runs.plan_runs(kept, live, quiet=True)[0] == []


def test_upkeep_looks_again_soon_after_its_first_look_and_after_a_lull(tmp_path: Path) -> None:
    table, clock = Table(tmp_path), Clock()
    keeper = PaimonKeeper(table.sink.warehouse, table.sink.table, ONLY_RUNS, own_user=USER, clock=clock)

    def pause(after_s: float, commits: int) -> float:
        for _ in range(commits):
            table.commit((1, 1, "a"))
        clock.now += after_s
        keeper.step()
        return keeper.every_s

    assert pause(0.0, commits=1) == 1.0
    assert pause(1.0, commits=4) == 1.0  # four a second, and four runs are allowed
    assert [pause(after, commits=0) for after in (1.0, 2.0, 4.0, 8.0, 16.0)] == [2.0, 4.0, 8.0, 16.0, 30.0]
    assert pause(30.0, commits=3) == 30.0


def test_merge_for_takes_two_words() -> None:
    with pytest.raises(ConfigError, match="merge_for='fun'"):
        Upkeep(merge_for="fun")  # type: ignore[arg-type]
