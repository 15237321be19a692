"""``penstock upkeep``."""

from __future__ import annotations

import json
import os

from click.testing import CliRunner

from penstock.cli.main import main
from tests.sinks.second_reader import snapshots_of
from tests.sinks.tables import every_file
from tests.sinks.upkeep_tables import Story, story

__all__ = ["story"]


def run(story: Story, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["upkeep", story.sink.warehouse, story.sink.table, *options])
    return result.exit_code, result.output


def test_the_command_keeps_a_table_and_says_what_it_did(story: Story) -> None:
    story.commit(8)
    code, text = run(story, "--keep", "2", "--expire-older-than", "0 s")
    assert code == 0, text
    assert "16 compacted into 1" in text
    assert len(snapshots_of(story.sink)) == 2
    story.assert_whole()


def test_a_dry_run_as_json_changes_nothing(story: Story) -> None:
    story.commit(8)
    before = every_file(story.sink)
    code, text = run(story, "--dry-run", "--json", "--keep-at-most", "3")
    assert code == 0, text
    report = json.loads(text)
    assert (report["dry_run"], report["files_compacted"], report["snapshots_expired"]) == (True, 16, 5)
    assert every_file(story.sink) == before


def test_each_action_can_be_left_out(story: Story) -> None:
    story.commit(8)
    options = ["--no-compact", "--no-merge", "--no-expire", "--keep-at-most", "1", "--json"]
    code, text = run(story, *options)
    assert code == 0, text
    assert {name: count for name, count in json.loads(text).items() if count} == {}


def test_orphans_go_only_when_they_are_old(story: Story) -> None:
    story.commit(1)
    orphan = next(path for path in every_file(story.sink) if path.suffix == ".parquet")
    orphan = orphan.with_name("data-0d6a7277-91e7-4d4e-82b8-2cf653e11dbd-0.parquet")
    orphan.write_text("left over")
    run(story, "--orphans-older-than", "1 d")
    assert orphan.exists()
    os.utime(orphan, (0, 0))
    code, text = run(story, "--orphans-older-than", "1 d")
    assert code == 0, text
    assert not orphan.exists()


def test_a_misspelt_checkpoint_folder_removes_nothing(story: Story, tmp_path: object) -> None:
    story.commit(1)
    code, text = run(story, "--orphans-older-than", "1 d", "--checkpoint", f"{tmp_path}/nowhere")
    assert code == 1
    assert "holds no checkpoint" in text


def test_a_table_that_is_not_there_is_named(story: Story) -> None:
    result = CliRunner().invoke(main, ["upkeep", story.sink.warehouse, "shop.nothing"])
    assert result.exit_code == 1
    assert "there is no table shop.nothing" in result.output
