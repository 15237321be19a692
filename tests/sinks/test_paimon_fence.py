"""A table may come from anybody: upkeep and commits touch nothing outside of its folder."""

from __future__ import annotations

import inspect
import io
import json
from pathlib import Path

import fastavro
import pytest
from pypaimon.filesystem.local_file_io import LocalFileIO

from penstock.errors import CorruptFile, PenstockError, StorageFailed, UnsafeName
from penstock.protocol.manifest import Committable
from penstock.sinks.paimon import fence, private
from penstock.sinks.paimon.fence import FencedFileIO, inside
from penstock.sinks.paimon.open import find_table, open_table
from penstock.sinks.paimon.sink import Paimon
from penstock.sinks.paimon.upkeep.keeper import PaimonKeeper
from penstock.sinks.upkeep import Upkeep
from tests.support.tables import SCHEMA, commit, epoch

NAME = "db.words"
EAGER = Upkeep(manifests=None, small_files=None, snapshots=1, snapshots_for=0.0, orphans_after="1 h")


@pytest.fixture
def sink(tmp_path: Path) -> Paimon:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/x").write_text("private")
    made = Paimon(str(tmp_path / "lake"), NAME)
    made.check(SCHEMA)
    committer = made.open_committer("penstock-me-words")
    for checkpoint in (1, 2, 3):
        commit(committer, checkpoint, epoch(made, checkpoint))
    return made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lake/db.db/words"


def keep(sink: Paimon) -> str:
    keeper = PaimonKeeper(sink.warehouse, NAME, EAGER, clock=lambda: 4e9)
    return "\n".join(keeper.step().failures)


def forge_snapshot(root: Path, **names: str) -> None:
    path = root / "snapshot/snapshot-1"
    path.write_text(json.dumps(json.loads(path.read_text()) | names))


@pytest.mark.parametrize("field", ["statistics", "indexManifest", "baseManifestList", "deltaManifestList"])
def test_a_snapshot_that_names_a_file_outside_removes_nothing_there(
    sink: Paimon, root: Path, tmp_path: Path, field: str
) -> None:
    forge_snapshot(root, **{field: "../../../../outside/x"})
    assert "PEN-018" in keep(sink)
    assert (tmp_path / "outside/x").read_text() == "private"


def test_a_manifest_that_names_a_data_file_outside_removes_nothing_there(
    sink: Paimon, root: Path, tmp_path: Path
) -> None:
    """Expiry removes what the next snapshot has dropped."""
    snapshot = json.loads((root / "snapshot/snapshot-2").read_text())
    listed = next(fastavro.reader(io.BytesIO((root / "manifest" / snapshot["deltaManifestList"]).read_bytes())))
    path = root / "manifest" / listed["_FILE_NAME"]
    reader = fastavro.reader(io.BytesIO(path.read_bytes()))
    schema, records = reader.writer_schema, list(reader)
    for record in records:
        record["_KIND"] = 1
        record["_FILE"]["_FILE_NAME"] = "../../../../outside/x"
    out = io.BytesIO()
    fastavro.writer(out, schema, records)
    path.write_bytes(out.getvalue())
    assert "PEN-018" in keep(sink)
    assert (tmp_path / "outside/x").read_text() == "private"


@pytest.mark.parametrize("folder", ["manifest", "snapshot", "schema", "statistics", "tag"])
def test_a_folder_of_metadata_that_is_a_link_is_refused(sink: Paimon, root: Path, tmp_path: Path, folder: str) -> None:
    if (root / folder).exists():
        (root / folder).rename(tmp_path / "outside" / folder)
    else:
        (tmp_path / "outside" / folder).mkdir()
    (root / folder).symlink_to(tmp_path / "outside" / folder)
    with pytest.raises(UnsafeName, match=folder):
        keep(sink)
    with pytest.raises(UnsafeName, match=folder):
        sink.open_committer("penstock-me-words")


def test_orphans_behind_a_link_stay(sink: Paimon, root: Path, tmp_path: Path) -> None:
    name = "data-00000000-0000-0000-0000-000000000000-0.parquet"
    (tmp_path / "outside/bucket-0").mkdir()
    (tmp_path / "outside/bucket-0" / name).write_text("private")
    (root / "day=1").symlink_to(tmp_path / "outside")
    (root / "bucket-9").symlink_to(tmp_path / "outside/bucket-0")
    assert keep(sink) == ""
    assert (tmp_path / "outside/bucket-0" / name).exists()


def test_an_attempts_list_removes_data_files_of_the_table_only(sink: Paimon, root: Path, tmp_path: Path) -> None:
    before = sorted(path for path in root.rglob("*") if path.is_file())
    committer = sink.open_committer("penstock-me-words")
    committer.remove(["../../../outside/x", "snapshot/snapshot-1", "schema/schema-0", "bucket-0/../../../../outside/x"])
    assert sorted(path for path in root.rglob("*") if path.is_file()) == before
    assert (tmp_path / "outside/x").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda file: setattr(file, "file_name", "../../../../outside/x"),
        lambda file: setattr(file, "file_name", "../../snapshot/snapshot-1"),
        lambda file: setattr(file, "extra_files", ["../x"]),
        lambda file: setattr(file, "external_path", "file:///etc/passwd"),
    ],
)
def test_a_forged_committable_is_neither_committed_nor_aborted(sink: Paimon, tmp_path: Path, change: object) -> None:
    table = open_table(sink.warehouse, NAME)
    (made, *_) = epoch(sink, 4)
    message = private.decode(table, made.payload)
    assert callable(change)
    change(message.new_files[0])
    forged = Committable(private.encode(table, message), made.rows, made.bytes)
    committer = sink.open_committer("penstock-me-words")
    for use in (lambda: commit(committer, 4, [forged]), lambda: committer.abort([forged])):
        with pytest.raises(CorruptFile):
            use()
    assert (tmp_path / "outside/x").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [("data-file.path-directory", "../../../../outside"), ("data-file.prefix", "../../../../outside/")],
)
def test_options_of_a_table_cannot_send_a_writer_outside(
    sink: Paimon, root: Path, tmp_path: Path, option: str, value: str
) -> None:
    path = root / "schema/schema-0"
    document = json.loads(path.read_text())
    document["options"][option] = value
    path.write_text(json.dumps(document))
    with pytest.raises(PenstockError):
        epoch(sink, 4)
    assert sorted(path.name for path in (tmp_path / "outside").iterdir()) == ["x"]


def test_every_way_of_pypaimon_to_reach_a_file_passes_the_fence(sink: Paimon, tmp_path: Path) -> None:
    """A method that does not ask `_to_file` would be a hole; a new version of pypaimon may bring one."""
    files = open_table(sink.warehouse, NAME).file_io
    assert isinstance(files, FencedFileIO)
    outside = str(tmp_path / "outside/x")
    helpers = {"create", "parse_location", "to_filesystem_path"}
    methods = {
        name: method
        for name, method in inspect.getmembers(files, inspect.ismethod)
        if not name.startswith("_") and name not in helpers and "path" in inspect.signature(method).parameters
    }
    assert {"new_input_stream", "new_output_stream", "delete", "exists", "mkdirs", "list_status"} <= methods.keys()
    for name in (
        "new_input_stream",
        "new_output_stream",
        "get_file_status",
        "list_status",
        "exists",
        "delete",
        "mkdirs",
    ):
        with pytest.raises(UnsafeName):
            methods[name](outside)
    for name, method in inspect.getmembers(LocalFileIO, inspect.isfunction):
        source = inspect.getsource(method)
        if " open(" in source or "makedirs(" in source or "unlink(" in source or "rmtree(" in source:
            asks = "_to_file(" in source or name in vars(FencedFileIO)
            assert asks, f"{name} does not ask where a path leads"
    assert (tmp_path / "outside/x").read_text() == "private"


@pytest.mark.parametrize("name", ["schema-0000000006", "schema-+6", "schema-\n6", "schema-٦"])
@pytest.mark.parametrize("create", [True, False])
def test_a_foreign_name_among_the_schemas_is_told_at_start_and_nothing_is_written(
    sink: Paimon, root: Path, name: str, create: bool
) -> None:
    (root / "schema" / name).write_bytes((root / "schema/schema-0").read_bytes())
    before = sorted(root.rglob("*"))
    with pytest.raises(CorruptFile, match="finds no table"):
        Paimon(sink.warehouse, NAME, create=create).check(SCHEMA)
    assert sorted(root.rglob("*")) == before


def test_no_table_is_made_over_the_snapshots_of_another(sink: Paimon, root: Path) -> None:
    (root / "schema/schema-0").unlink()
    with pytest.raises(CorruptFile, match="snapshot-3"):
        sink.check(SCHEMA)
    assert list((root / "schema").iterdir()) == []


def test_making_a_table_ends_where_its_first_schema_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pypaimon tells of a rename that fails as of another committer that was faster."""
    monkeypatch.setattr(LocalFileIO, "rename", lambda *_: False)
    with pytest.raises(StorageFailed, match="schema-0"):
        Paimon(str(tmp_path / "lake"), NAME).check(SCHEMA)


def test_a_table_that_another_driver_makes_meanwhile_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Paimon(str(tmp_path / "lake"), NAME)
    leftover = fence.leftover

    def made_meanwhile(folder: Path) -> str | None:
        monkeypatch.setattr(fence, "leftover", leftover)
        Paimon(mine.warehouse, NAME).check(SCHEMA)
        return leftover(folder)

    monkeypatch.setattr(fence, "leftover", made_meanwhile)
    assert find_table(mine.warehouse, NAME) is not None


def test_a_path_inside_is_told_as_it_is_called_there(tmp_path: Path) -> None:
    assert inside(tmp_path, tmp_path / "a/b") == "a/b"
    for path in (tmp_path, tmp_path.parent / "x", f"{tmp_path}/../x", f"{tmp_path}/a/../../x", "a", f"{tmp_path}x/a"):
        with pytest.raises(UnsafeName):
            inside(tmp_path, path)
