"""C10: tables with buckets and primary keys: what is written, in which order it counts, and what it costs."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pypaimon import CatalogFactory
from pypaimon.schema.schema_change import SchemaChange

import penstock as pen
from penstock.errors import SubtaskFailed, TableMismatch, TableRefused
from penstock.graph.compiler import compile_pipeline
from penstock.protocol.ids import CheckpointId
from penstock.sinks.base import Committable
from penstock.sinks.paimon import private
from penstock.sinks.paimon.files import DataFiles, groups_of
from penstock.sinks.paimon.open import open_table
from penstock.sinks.paimon.read import listed_files, read_table
from penstock.sinks.paimon.sequence import ROW_BITS, shift_above
from penstock.sinks.paimon.sink import Paimon
from penstock.sinks.rowkind import row_kinds
from penstock.testing.inline import InlineRun, stream_of
from tests.support.keyed_runs import CASES, check_seed
from tests.support.readers import merged_by_polars
from tests.support.tables import commit, context, data_files, make_table, write

SCHEMA = pa.schema([("user", pa.int64()), ("word", pa.string()), ("op", pa.string())])


def rows(*values: tuple[Any, ...]) -> pa.RecordBatch:
    columns = zip(*values, strict=True)
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def keyed(folder: Path, **arguments: Any) -> Paimon:
    sink = Paimon(str(folder), "db.t", primary_key=["user"], **{"buckets": 2, "row_kind": "op"} | arguments)
    sink.check(SCHEMA)
    return sink


def shown(sink: Paimon) -> dict[int, str]:
    found = {row["user"]: row["word"] for row in read_table(sink.warehouse, sink.table).to_pylist()}
    assert found == {row["user"]: row["word"] for row in merged_by_polars(sink)}
    return found


def files_of(sink: Paimon, committables: list[Committable]) -> list[Any]:
    table = open_table(sink.warehouse, sink.table)
    return [file for made in committables for file in private.decode(table, made.payload).new_files]


# Each kind once, one with every seed; `python -m tests.support.keyed_runs 20` runs all.
RUNS = [(name, seed) for index, name in enumerate(CASES) for seed in range(3) if index == 0 or (index + seed) % 3 == 0]


@pytest.mark.parametrize(("name", "seed"), RUNS)
def test_a_table_shows_what_a_plain_computation_over_the_input_shows(name: str, seed: int, tmp_path: Path) -> None:
    """C10: all merge engines, deletes, partitions; with commits that lag or are lost, restarts and rescaling."""
    print(f"{name}, seed {seed}")
    check_seed(name, seed, tmp_path)


def test_the_newest_row_of_a_key_wins_whatever_order_commits_have(tmp_path: Path) -> None:
    """C10: sequence numbers come from the checkpoint, not from what was committed."""
    sink = keyed(tmp_path)
    old, new = (
        write(sink, 1, rows((7, "old", "+I")), schema=SCHEMA),
        write(sink, 2, rows((7, "new", "+U")), schema=SCHEMA),
    )
    commit(sink.open_committer("one"), 2, new)
    commit(sink.open_committer("other"), 1, old)
    assert shown(sink) == {7: "new"}


def test_a_deleted_row_is_gone_and_can_come_back(tmp_path: Path) -> None:
    sink = keyed(tmp_path)
    committer = sink.open_committer("me")
    commit(committer, 1, write(sink, 1, rows((1, "a", "c"), (2, "b", "c")), schema=SCHEMA))
    commit(committer, 2, write(sink, 2, rows((1, "a", "d"), (2, "b", "-U"), (2, "c", "+U")), schema=SCHEMA))
    assert shown(sink) == {2: "c"}
    commit(committer, 3, write(sink, 3, rows((1, "again", "insert")), schema=SCHEMA))
    assert shown(sink) == {1: "again", 2: "c"}


def test_a_file_tells_how_many_of_its_rows_are_deletions(tmp_path: Path) -> None:
    """Other engines skip the merge of a file without deletions."""
    sink = keyed(tmp_path, buckets=1)
    (file,) = files_of(sink, write(sink, 1, rows((1, "a", "-D"), (2, "b", "+I"), (3, "c", "-D")), schema=SCHEMA))
    assert (file.row_count, file.delete_row_count) == (3, 2)


def test_a_file_tells_its_keys_and_its_sequence_numbers(tmp_path: Path) -> None:
    sink = keyed(tmp_path, buckets=1)
    batches = [rows((5, "a", "+I"), (9, "b", "+I")), rows((1, "c", "+I"), (5, "d", "+U"))]
    (file,) = files_of(sink, write(sink, 4, *batches, schema=SCHEMA))
    assert (file.min_key.values, file.max_key.values) == ([1], [9])
    assert (file.min_sequence_number, file.max_sequence_number) == ((4 << ROW_BITS) + 1, (4 << ROW_BITS) + 3)


def test_deletions_are_dropped_where_the_table_says_so(tmp_path: Path) -> None:
    sink = keyed(tmp_path, options={"ignore-delete": "true"}, merge_engine="first-row")
    committables = write(sink, 1, rows((1, "a", "+I"), (1, "a", "-D"), (2, "b", "-D")), schema=SCHEMA)
    assert sum(made.rows for made in committables) == 1


@pytest.mark.parametrize("word", ["?", "", None])
def test_a_word_that_is_no_row_kind_is_named(word: str | None) -> None:
    with pytest.raises(SubtaskFailed, match="row kind"):
        row_kinds(pa.array(["+I", word]))


def test_a_row_without_its_key_is_named(tmp_path: Path) -> None:
    sink = keyed(tmp_path)
    with pytest.raises(SubtaskFailed, match="user"):
        write(sink, 1, rows((None, "a", "+I")), schema=SCHEMA)
    assert data_files(sink) == set()


def test_rows_of_a_new_query_are_newer_than_those_of_an_older_one(tmp_path: Path) -> None:
    """C10: a new checkpoint folder counts from 1 again, sequence numbers do not."""
    sink = keyed(tmp_path)
    commit(sink.open_committer("older"), 900, write(sink, 900, rows((1, "older", "+I")), schema=SCHEMA))
    newer = sink.taken_over(CheckpointId(1), [])
    commit(newer.open_committer("newer"), 2, write(newer, 2, rows((1, "newer", "+I")), schema=SCHEMA))
    assert shown(sink) == {1: "newer"}


def test_rows_of_a_new_driver_are_newer_than_what_is_still_pending(tmp_path: Path) -> None:
    sink = keyed(tmp_path)
    shifted = sink.taken_over(CheckpointId(1), write(sink, 50, rows((1, "pending", "+I")), schema=SCHEMA))
    (file,) = files_of(sink, write(shifted, 2, rows((1, "newer", "+I")), schema=SCHEMA))
    assert file.min_sequence_number >= 51 << ROW_BITS


def test_numbers_without_room_above_them_are_refused() -> None:
    with pytest.raises(TableRefused, match="no room"):
        shift_above(CheckpointId(1), [1 << 62])


def test_rows_of_another_engine_are_older(tmp_path: Path) -> None:
    sink = make_table(tmp_path, SCHEMA, primary_keys=["user"], options={"bucket": "1"})
    builder = open_table(sink.warehouse, sink.table).new_batch_write_builder()
    other = builder.new_write()
    other.write_arrow(pa.Table.from_batches([rows((1, "theirs", "+I"))]))
    builder.new_commit().commit(other.prepare_commit())
    ours = sink.taken_over(CheckpointId(1), [])
    commit(ours.open_committer("me"), 1, write(ours, 1, rows((1, "ours", "+I")), schema=SCHEMA))
    assert shown(sink) == {1: "ours"}


def test_a_field_orders_rows_where_the_table_names_one(tmp_path: Path) -> None:
    """sequence.field counts before the order of arrival, within a file and between files."""
    sink = keyed(tmp_path, options={"sequence.field": "word"}, buckets=1)
    committer = sink.open_committer("me")
    commit(committer, 1, write(sink, 1, rows((1, "b", "+I"), (1, "a", "+I"), (2, "x", "+I")), schema=SCHEMA))
    commit(committer, 2, write(sink, 2, rows((1, "a", "+I"), (2, "y", "+I")), schema=SCHEMA))
    found = {row["user"]: row["word"] for row in read_table(sink.warehouse, sink.table).to_pylist()}
    assert found == {1: "b", 2: "y"}


def test_an_append_table_keeps_the_order_of_each_bucket(tmp_path: Path) -> None:
    """C10: files of one bucket are numbered by age, so a reader that goes on from file to file sees the order."""
    sink = Paimon(str(tmp_path), "db.t", buckets=2, bucket_key=["user"], partition_by=["op"])
    sink.check(SCHEMA)
    committer = sink.open_committer("me")
    for checkpoint in (1, 2, 3):
        batch = rows(*((user, f"{checkpoint}-{user}", op) for user in range(8) for op in ("x", None)))
        committables = write(sink, checkpoint, batch, schema=SCHEMA)
        for file in files_of(sink, committables):
            first, last = file.min_sequence_number, file.max_sequence_number
            assert checkpoint << ROW_BITS <= first < last < (checkpoint << ROW_BITS) + 16
        commit(committer, checkpoint, committables)
    found = read_table(sink.warehouse, sink.table).to_pylist()
    assert len(found) == 48
    for user in range(8):
        for op in ("x", None):
            words = [row["word"] for row in found if (row["user"], row["op"]) == (user, op)]
            assert words == [f"{checkpoint}-{user}" for checkpoint in (1, 2, 3)]
    table = open_table(sink.warehouse, sink.table)
    splits = table.new_read_builder().new_scan().plan().splits()
    assert {split.bucket for split in splits} == {0, 1}


def test_buffers_are_written_out_before_they_fill_the_memory(tmp_path: Path) -> None:
    """Many partitions at once: the largest buffers become files early, the rest wait for the end of the epoch."""
    sink = Paimon(str(tmp_path), "db.t", partition_by=["op"], options={"write-buffer-size": "64 kb"})
    sink.check(SCHEMA)
    writer = sink.open_writer(context(1), SCHEMA)
    for number in range(40):
        writer.write(rows(*((number, "x" * 100, str(op)) for op in range(20))))
        assert _buffered(writer._files) <= 64 << 10
    committables = writer.prepare()
    assert 20 < len(files_of(sink, committables)) < 200
    commit(sink.open_committer("me"), 1, committables)
    assert read_table(sink.warehouse, sink.table).num_rows == 800


def _buffered(files: DataFiles) -> int:
    return sum(writer._buffer.nbytes for writer in files._writers.values())


def test_a_failed_writer_leaves_no_file(tmp_path: Path) -> None:
    sink = keyed(tmp_path, options={"write-buffer-size": "1 kb"})
    writer = sink.open_writer(context(1), SCHEMA)
    writer.write(rows(*((user, "x" * 100, "+I") for user in range(50))))
    assert data_files(sink)
    writer.abort()
    assert data_files(sink) == set()


def test_a_table_whose_buckets_change_while_the_query_runs_stops_the_writer(tmp_path: Path) -> None:
    started = keyed(tmp_path, buckets=2).taken_over(CheckpointId(1), [])
    catalog = CatalogFactory.create({"warehouse": started.warehouse})
    catalog.alter_table(started.table, [SchemaChange.set_option("bucket", "4")])
    with pytest.raises(TableMismatch, match="began with 2"):
        started.open_writer(context(2), SCHEMA)


NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 123456)  # noqa: DTZ001 - a timestamp without zone is what is tested
KEYS: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    pa.int8(): [-128, 0, 127],
    pa.int64(): [-(2**63), -1, 0, 2**63 - 1],
    pa.decimal128(18, 2): [Decimal("-1.50"), Decimal("0.00"), Decimal("10.25")],
    pa.date32(): [dt.date(1900, 1, 1), dt.date(2024, 2, 29)],
    pa.timestamp("s"): [NOON.replace(microsecond=0), NOON.replace(year=1960, microsecond=0)],
    pa.timestamp("ms"): [NOON.replace(microsecond=123000), NOON.replace(year=1960, microsecond=1000)],
    pa.timestamp("us"): [NOON, NOON.replace(year=1960)],
    pa.timestamp("us", "UTC"): [NOON.replace(tzinfo=dt.UTC), NOON.replace(year=1960, tzinfo=dt.UTC)],
    pa.string(): ["", "a", "ab", "longer than a word", "ü", "\U0001f600", "\uffff"],
    pa.large_string(): ["x", "y"],
    pa.binary(): [b"", b"\0", b"\x7f", b"\xff\xff"],
}


@pytest.mark.parametrize("kind", KEYS, ids=str)
def test_keys_of_every_type_meet_their_older_rows(kind: pa.DataType, tmp_path: Path) -> None:
    """C10: files are merged by their ranges of keys, so a type whose order is read otherwise would show rows twice."""
    schema = pa.schema([("key", kind), ("n", pa.int64())])
    sink = Paimon(str(tmp_path), "db.t", primary_key=["key"], buckets=2)
    sink.check(schema)
    committer, values = sink.open_committer("me"), KEYS[kind]
    for checkpoint, some in enumerate([values, values[:1], values[::-1], values[1:]], 1):
        batch = pa.record_batch([pa.array(some, kind), pa.array([checkpoint] * len(some))], schema=schema)
        commit(committer, checkpoint, write(sink, checkpoint, batch, schema=schema))
    found = {row["key"]: row["n"] for row in read_table(sink.warehouse, sink.table).to_pylist()}
    assert read_table(sink.warehouse, sink.table).num_rows == len(values)
    assert found == {value: 3 if index == 0 else 4 for index, value in enumerate(values)}


def test_rows_are_grouped_in_their_order() -> None:
    batch = rows((1, "a", "x"), (2, "b", None), (3, "c", "x"), (4, "d", None))
    grouped = {partition: list(members) for partition, _, members in groups_of(batch, ("op",), None)}
    assert grouped == {("x",): [0, 2], (None,): [1, 3]}


def test_a_bucketed_table_gets_its_rows_by_bucket(tmp_path: Path) -> None:
    """C10: the compiler puts an exchange before the writer, also between a source and its table."""
    output = stream_of(SCHEMA).write(Paimon(str(tmp_path), "db.t", primary_key=["user"]), name="table")
    stages = compile_pipeline([output.node]).stages
    assert [stage.name for stage in stages] == ["from-source", "write-table"]
    (edge,) = stages[1].inputs
    assert edge.keys == ("bucket(4; user)",)
    assert not stages[0].sinks


def test_an_append_table_without_buckets_is_written_where_rows_are_made(tmp_path: Path) -> None:
    output = stream_of(SCHEMA).write(Paimon(str(tmp_path), "db.t"))
    assert len(compile_pipeline([output.node]).stages) == 1


def test_one_file_for_each_bucket_and_epoch(tmp_path: Path) -> None:
    """Rows of one bucket meet, so files do not multiply with subtasks."""
    batch = pa.table({"user": range(1000), "word": ["x"] * 1000, "op": ["+I"] * 1000}, schema=SCHEMA)
    sink = Paimon(str(tmp_path / "lake"), "db.t", primary_key=["user"], buckets=4, row_kind="op")
    run = InlineRun([{"source": batch}], lambda: 0.0)
    output = stream_of(SCHEMA).key_by("user").aggregate(word=pen.max("word"), op=pen.max("op")).write(sink)
    run.start(output, checkpoint=tmp_path / "checkpoint", parallelism=8).await_termination(60)
    assert len(listed_files(sink.warehouse, sink.table)) == 4
    assert len(shown(sink)) == 1000


def test_a_table_with_another_number_of_buckets_is_another_table(tmp_path: Path) -> None:
    """C10: the sink has to get another name, too."""
    batch = pa.table({"user": [1], "word": ["x"], "op": ["+I"]}, schema=SCHEMA)

    def start(table: str, buckets: int) -> None:
        sink = Paimon(str(tmp_path / "lake"), table, primary_key=["user"], buckets=buckets)
        query = InlineRun([{"source": batch}], lambda: 0.0).start(
            stream_of(SCHEMA).write(sink), checkpoint=tmp_path / "c"
        )
        query.await_termination(60)

    start("db.four", 4)
    with pytest.raises(TableMismatch, match="give the sink another name"):
        start("db.eight", 8)
