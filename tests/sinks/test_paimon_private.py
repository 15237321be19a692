"""The names of pypaimon that its documentation does not promise: each test fails when one moves."""

from __future__ import annotations

import inspect
import logging
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from pypaimon import Schema

from penstock.errors import ConfigError
from penstock.protocol.ids import CheckpointId, Generation
from penstock.sinks.base import WriterContext
from penstock.sinks.paimon import private
from penstock.sinks.paimon.open import open_table
from penstock.sinks.paimon.sequence import ROW_BITS
from penstock.sinks.paimon.sink import Paimon
from tests.support.tables import SCHEMA, commit, epoch, rows, write


def parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_a_file_store_commit_takes_a_publisher_a_table_and_a_user() -> None:
    assert parameters(private.FileStoreCommit)[:3] == ["snapshot_commit", "table", "commit_user"]
    assert parameters(private.FileStoreCommit.commit)[1:] == [
        "commit_messages",
        "commit_identifier",
        "snapshot_properties",
    ]


def test_publishing_has_one_method_with_three_arguments() -> None:
    assert private.SnapshotCommit.__abstractmethods__ == {"commit", "close"}
    assert parameters(private.SnapshotCommit.commit) == ["self", "base_snapshot_uuid", "snapshot", "statistics"]


def test_unpublished_manifests_can_be_cleaned_up() -> None:
    assert parameters(private.FileStoreCommit._clean_up_tmp_manifests)[1:4] == [
        "base_manifest_list",
        "delta_manifest_list",
        "changelog_manifest_list",
    ]


def test_pypaimons_loop_catches_exceptions_but_not_what_stops_a_process() -> None:
    """`_Halt` leaves the loop only because it is no `Exception`."""
    source = inspect.getsource(private.FileStoreCommit._try_commit_once)
    assert "except Exception" in source
    assert "except BaseException" not in source


def test_a_committer_has_the_managers_of_manifests(sink: Paimon) -> None:
    files = private.TableFiles(open_table(sink.warehouse, sink.table), "me", lambda _: True)
    assert files._lists.read_all(None) == []
    assert files._manifests.manifest_path.endswith("/manifest")


def test_snapshots_are_found_by_number_and_by_hint(sink: Paimon) -> None:
    files = private.TableFiles(open_table(sink.warehouse, sink.table), "me", lambda _: True)
    assert files.latest() is None
    assert files.snapshot(1) is None
    commit(sink.open_committer("me"), 1, epoch(sink, 1))
    latest = files.latest()
    assert latest.id == 1
    assert files.snapshot(1).uuid == latest.uuid
    assert files.snapshot_path(1).endswith("/snapshot/snapshot-1")
    assert files.hint_path().endswith("/snapshot/LATEST")
    assert (files.files_added(latest), len(files.own_manifests(latest))) == (2, 3)


def test_a_snapshot_is_stored_as_json_with_the_names_of_the_format(sink: Paimon) -> None:
    commit(sink.open_committer("me"), 1, epoch(sink, 1))
    snapshot = open_table(sink.warehouse, sink.table).snapshot_manager().get_latest_snapshot()
    assert '"commitIdentifier": 1' in private.snapshot_json(snapshot)


def test_commit_messages_keep_their_meaning_as_bytes(sink: Paimon) -> None:
    table = open_table(sink.warehouse, sink.table)
    (committable,) = write(sink, 1, rows([1, 2]))
    message = private.decode(table, committable.payload)
    assert [file.row_count for file in message.new_files] == [2]
    assert private.encode(table, message) == committable.payload


def test_commit_messages_have_the_version_that_checkpoints_hold(sink: Paimon) -> None:
    """A pypaimon that changes it must still read 14, or refuse: checkpoints outlive upgrades."""
    assert private.VERSION == 14
    (committable,) = write(sink, 1, rows([1]))
    assert committable.payload[0] == 14


def test_a_data_file_is_where_the_path_factory_says(sink: Paimon) -> None:
    table = open_table(sink.warehouse, sink.table)
    (committable,) = write(sink, 1, rows([1]))
    ((name, path),) = private.data_paths(table, private.decode(table, committable.payload)).items()
    assert path == f"{sink.warehouse}/shop.db/words/bucket-0/{name}"


def test_a_table_tells_its_arrow_columns_and_its_bucket_key(sink: Paimon) -> None:
    table = open_table(sink.warehouse, sink.table)
    assert private.columns_of(table).equals(SCHEMA)
    assert private.is_file_store(table)
    assert private.bucket_key(table) == ()
    assert private.why_not_merged(table) is None


def test_a_table_can_be_looked_at_before_it_is_made() -> None:
    schema = Schema.from_pyarrow_schema(SCHEMA, primary_keys=["id"], options={"bucket": "3"})
    drafted = private.draft("db.t", schema)
    assert private.is_file_store(drafted)
    assert private.bucket_key(drafted) == ("id",)
    assert private.why_not_merged(drafted) is None


def test_a_merge_engine_that_pypaimon_lacks_is_told_before_anything_is_written() -> None:
    options = {"bucket": "1", "merge-engine": "aggregation", "fields.word.aggregate-function": "rbm64"}
    schema = Schema.from_pyarrow_schema(SCHEMA, primary_keys=["id"], options=options)
    assert "rbm64" in (private.why_not_merged(private.draft("db.t", schema)) or "")


def test_the_highest_sequence_number_is_found_in_the_manifests(tmp_path: Path) -> None:
    sink = Paimon(str(tmp_path), "db.t", primary_key=["id"], buckets=1)
    sink.check(SCHEMA)
    assert private.highest_sequence(open_table(sink.warehouse, sink.table)) == 0
    commit(sink.open_committer("me"), 5, write(sink, 5, rows([1, 2, 1])))
    assert private.highest_sequence(open_table(sink.warehouse, sink.table)) == (5 << ROW_BITS) + 2


def test_options_can_be_set_for_one_process(sink: Paimon) -> None:
    table = private.with_options(open_table(sink.warehouse, sink.table), {"commit.max-retries": "3"})
    assert table.options.commit_max_retries() == 3
    assert open_table(sink.warehouse, sink.table).options.commit_max_retries() != 3


def test_pypaimon_publishes_by_itself_where_there_is_no_local_folder(sink: Paimon) -> None:
    """Stands in for an object store: the fence and pypaimon's own publishing, without links."""
    committer = sink.open_committer("me")
    committer._root = None
    commit(committer, 1, epoch(sink, 1))
    assert commit(committer, 2, epoch(sink, 2)).snapshot == 2


def test_pypaimon_keeps_quiet() -> None:
    assert logging.getLogger("pypaimon").level == logging.WARNING


def test_a_sink_travels_without_importing_pypaimon() -> None:
    script = (
        "import pickle, sys; from penstock.sinks.paimon.sink import Paimon\n"
        "sink = Paimon('lake', 'db.t', partition_by=['day'], options={'a': 'b'})\n"
        "assert pickle.loads(pickle.dumps(sink)) == sink and hash(sink)\n"
        "assert not [name for name in sys.modules if name.startswith('pypaimon')]"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_writer_on_an_executor_without_pypaimon_says_what_to_install(
    sink: Paimon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pypaimon", None)
    with pytest.raises(ConfigError, match=r"writer of Paimon table .* needs the package pypaimon") as raised:
        sink.open_writer(WriterContext(CheckpointId(1), Generation(1), 0, 1, "0"), SCHEMA)
    assert "on the executors" in raised.value.next_step


def test_a_sink_holds_plain_values_only(sink: Paimon) -> None:
    sink.open_committer("me")
    assert len(pickle.dumps(sink)) < 1000


@pytest.mark.parametrize("name", ["warehouse", "table", "partition_by", "options"])
def test_a_sink_cannot_be_changed(sink: Paimon, name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(sink, name, None)
