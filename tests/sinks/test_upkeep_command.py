"""``penstock upkeep``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from penstock.cli.main import main
from penstock.engine.query import Query
from penstock.errors import Fenced
from penstock.sinks.paimon.commit import PaimonCommitter
from penstock.sinks.paimon.read import read_table
from penstock.sinks.paimon.sink import Paimon
from penstock.testing.inline import InlineRun, stream_of
from tests.support.second_reader import snapshots_of
from tests.support.tables import every_file
from tests.support.upkeep_tables import Story, story

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


def test_files_that_wait_in_a_stopped_query_stay_if_its_checkpoint_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C4: the query ended before its commit. Days later it starts again and commits these very files."""
    sink = Paimon(str(tmp_path / "lake"), "shop.words")
    schema = pa.schema([("id", pa.int64())])
    run = InlineRun([{"source": pa.table({"id": [1, 2]}, schema=schema)}], clock=lambda: 0.0)

    def start() -> Query:
        output = stream_of(schema).write(sink)
        return run.start(output, checkpoint=str(tmp_path / "checkpoint"), parallelism=1, trigger="available_now")

    with monkeypatch.context() as patch:
        patch.setattr(PaimonCommitter, "commit", _replaced)
        with pytest.raises(Fenced):
            start().await_termination(60)
    (waiting,) = tmp_path.rglob("data-*.parquet")
    os.utime(waiting, (0, 0))
    command = ["upkeep", sink.warehouse, sink.table, "--orphans-older-than", "1 d"]
    would = CliRunner().invoke(main, [*command, "--dry-run", "--json"])
    assert json.loads(would.output)["orphans_removed"] == 1
    result = CliRunner().invoke(main, [*command, "--checkpoint", str(tmp_path / "checkpoint")])
    assert result.exit_code == 0, result.output
    assert waiting.exists()
    assert start().await_termination(60)
    assert sorted(read_table(sink.warehouse, sink.table)["id"].to_pylist()) == [1, 2]


def _replaced(*_: object, **__: object) -> None:
    raise Fenced("another driver took over")


def test_a_misspelt_checkpoint_folder_removes_nothing(story: Story, tmp_path: object) -> None:
    story.commit(1)
    code, text = run(story, "--orphans-older-than", "1 d", "--checkpoint", f"{tmp_path}/nowhere")
    assert code == 1
    assert "holds no checkpoint" in text


def test_a_table_that_is_not_there_is_named(story: Story) -> None:
    result = CliRunner().invoke(main, ["upkeep", story.sink.warehouse, "shop.nothing"])
    assert result.exit_code == 1
    assert "there is no table shop.nothing" in result.output
