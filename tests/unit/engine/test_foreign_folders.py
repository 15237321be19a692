"""A folder that is not Penstock's is refused before anything is written; a manifest under another's name is too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import CorruptFile, NotACheckpoint
from penstock.testing.inline import InlineRun, stream_of
from penstock.testing.tables import Memory, memory_table
from tests.support.engine_jobs import SCHEMA, FakeClock, batches_of


def job() -> InlineRun:
    return InlineRun(batches_of(10, 2), FakeClock())


def run(folder: Path, table: str, again: InlineRun | None = None, **options: Any) -> None:
    output = stream_of(SCHEMA).map_batches(lambda batch: batch, name="same").write(Memory(table))
    query = (again or job()).start(output, checkpoint=folder, **options)
    assert query.await_termination(60)


def put(folder: Path, *paths: str) -> dict[str, bytes]:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"x")
    return content(folder)


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


SPARK = ("metadata", "offsets/0", "offsets/.0.crc", "commits/0", "state/0/0/1.delta", "sources/0/0")


@pytest.mark.parametrize("paths", [SPARK, ("offsets/0",), ("metadata", "commits/0", "state/0/0/1.delta")])
def test_the_checkpoint_of_a_plain_spark_query_is_refused_as_it_is(
    tmp_path: Path, table: str, paths: tuple[str, ...]
) -> None:
    before = put(tmp_path, *paths)
    with pytest.raises(NotACheckpoint, match="checkpoint of a plain Spark query") as caught:
        run(tmp_path, table)
    assert content(tmp_path) == before
    assert caught.value.code == "PEN-017"
    assert "new folder" in caught.value.next_step
    assert "from_checkpoint=" in caught.value.next_step


def test_a_folder_with_other_files_is_refused_as_it_is(tmp_path: Path, table: str) -> None:
    before = put(tmp_path, "report.csv", *(f"photos/{number}.jpg" for number in range(9)))
    with pytest.raises(NotACheckpoint, match=r"holds 'photos', 'report.csv', and no checkpoint"):
        run(tmp_path, table)
    assert content(tmp_path) == before


def test_a_restore_into_a_folder_with_other_files_is_refused_too(tmp_path: Path, table: str) -> None:
    run(tmp_path / "a", table)
    before = put(tmp_path / "b", *SPARK)
    with pytest.raises(NotACheckpoint):
        run(tmp_path / "b", table, restore=str(tmp_path / "a"))
    assert content(tmp_path / "b") == before


def test_what_desktops_leave_in_folders_harms_nobody(tmp_path: Path, table: str) -> None:
    put(tmp_path, ".DS_Store", "Thumbs.db", ".Trash-1000/x")
    run(tmp_path, table)
    assert memory_table(table).rows().num_rows == 20


def test_a_start_that_died_before_its_first_checkpoint_is_no_foreign_folder(tmp_path: Path, table: str) -> None:
    put(tmp_path, "generations/0000000001.json", "source/metadata", "events.jsonl")
    run(tmp_path, table)
    assert memory_table(table).rows().num_rows == 20


def test_a_checkpoint_beside_other_files_goes_on(tmp_path: Path, table: str) -> None:
    again = job()
    run(tmp_path, table, again)
    put(tmp_path, *SPARK, "report.csv")
    run(tmp_path, table, again)


# -- a manifest that was copied ----------------------------------------------------------------------------------------


def copied_up(folder: Path) -> tuple[int, int]:
    manifests = sorted((folder / "manifests").glob("*.json"))
    newest = manifests[-1]
    number = int(newest.stem)
    (folder / "manifests" / f"{number + 7:010d}.json").write_bytes(newest.read_bytes())
    return number, number + 7


def test_a_manifest_copied_under_a_higher_number_is_refused(tmp_path: Path, table: str) -> None:
    run(tmp_path, table)
    number, copy = copied_up(tmp_path)
    with pytest.raises(CorruptFile, match=f"{copy:010d}.json.* is the manifest of checkpoint {number}") as caught:
        run(tmp_path, table)
    assert f"restore={number}" in caught.value.next_step.replace(" or ", " restore=")


def test_behind_a_copied_manifest_a_named_checkpoint_can_be_restored(tmp_path: Path, table: str) -> None:
    again = job()
    run(tmp_path, table, again)
    number, copy = copied_up(tmp_path)
    run(tmp_path, table, again, restore=number)
    assert max(int(path.stem) for path in (tmp_path / "manifests").glob("*.json")) > copy
    assert memory_table(table).rows().num_rows == 20
