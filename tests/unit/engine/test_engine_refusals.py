"""The whole engine without Spark: what does not fit is refused with a clear error and loses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import penstock as pen
from penstock.engine.checkpoints import Checkpoints
from penstock.errors import (
    CheckpointMismatch,
    ConfigError,
    CorruptFile,
    FormatTooNew,
    MissingFile,
    NoSuchCheckpoint,
    OperatorFailed,
    SourceMismatch,
    TablePositionMismatch,
)
from penstock.observe.events import decode_events
from penstock.protocol.codec import decode_manifest, encode_manifest
from penstock.protocol.layout import manifest_path
from penstock.protocol.manifest import Manifest
from penstock.store import LocalStore
from penstock.testing.inline import InlineFeed, InlineRun, stream_of
from penstock.testing.tables import Memory, memory_table
from tests.support.engine_jobs import (
    SCHEMA,
    FakeClock,
    assert_exact,
    batches_of,
    crash_in_job,
    finished,
    keyed_slow,
    newest_manifest,
    run_until,
)


def test_another_pipeline_is_refused_with_a_table(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """E6."""
    finished(tmp_path, clock, table)
    other = stream_of(SCHEMA).key_by("number").aggregate(n=pen.count(), name="other").write(Memory(table))
    with pytest.raises(CheckpointMismatch) as caught:
        InlineRun([], clock).start(other, checkpoint=tmp_path)
    assert "operator other" in str(caught.value)
    assert "forget=['slow']" in str(caught.value)


def test_a_changed_schema_is_refused(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """E6."""
    finished(tmp_path, clock, table)
    schema = pa.schema([("user", pa.int64()), ("number", pa.string())])
    with pytest.raises(CheckpointMismatch, match="its state is that of process"):
        InlineRun([], clock).start(
            stream_of(schema).key_by("user").aggregate(n=pen.count(), name="slow").write(Memory(table)),
            checkpoint=tmp_path,
        )


@pytest.mark.parametrize(
    ("before", "after", "fits"),
    [
        (pen.sum("number"), pen.sum("number"), True),
        (pen.sum("number"), pen.max("number"), False),
        (pen.sum("number"), pen.sum("user"), False),
        (pen.count(), pen.count("number"), False),
        (pen.last("number"), pen.last("number", ignore_nulls=True), False),
        (pen.collect_list("number", 3), pen.collect_list("number", 4), False),
        (pen.quantiles("number", [0.5]), pen.quantiles("number", [0.9]), True),
    ],
)
@pytest.mark.parametrize("window", [None, pen.tumbling_window("1 min")])
def test_an_aggregate_of_another_meaning_is_refused(
    tmp_path: Path, clock: FakeClock, table: str, before: Any, after: Any, fits: bool, window: Any
) -> None:
    """E6: its state has the same columns, and means something else."""

    def started(aggregate: Any) -> None:
        keyed: Any = stream_of(schema, event_time="ts").key_by("user")
        keyed = keyed if window is None else keyed.window(window)
        output = keyed.aggregate(x=aggregate, name="totals").write(Memory(table))
        InlineRun(batches, clock).start(output, checkpoint=tmp_path, epoch=None).await_termination(30)

    schema = SCHEMA.append(pa.field("ts", pa.timestamp("us", "UTC")))
    batches = [{"source": pa.table({"user": [1], "number": [7], "ts": [0]}, schema=schema)}]
    started(before)
    if fits:
        started(after)
    else:
        with pytest.raises(CheckpointMismatch, match=r"operator totals +refused .*computed: checkpoint has x"):
            started(after)


def test_a_damaged_manifest_is_refused_and_an_older_one_can_be_named(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    finished(tmp_path, clock, table)
    path = newest_manifest(tmp_path)
    data = path.read_bytes()
    for damaged in (data[: len(data) // 2], data.replace(b"slow", b"slaw"), b""):
        path.write_bytes(damaged)
        with pytest.raises(CorruptFile, match=r"restore=\d+"):
            InlineRun([], clock).start(keyed_slow(clock, table), checkpoint=tmp_path)


@pytest.mark.parametrize("damage", ["corrupt", "newer format"])
def test_an_older_checkpoint_is_the_way_out_of_a_newest_one_that_cannot_be_read(
    tmp_path: Path, clock: FakeClock, table: str, damage: str
) -> None:
    """B1: the message advises it. The takeover of a restart holds the same as the checkpoint before it."""
    run = finished(tmp_path, clock, table)
    run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)
    path = newest_manifest(tmp_path)
    manifest = decode_manifest(path.read_bytes())
    assert isinstance(manifest, Manifest)
    newer = encode_manifest(msgspec.structs.replace(manifest, format=99))
    path.write_bytes(newer if damage == "newer format" else path.read_bytes()[:-9])
    with pytest.raises(FormatTooNew if damage == "newer format" else CorruptFile, match=r"restore="):
        run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path)
    query = run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path, restore=manifest.checkpoint - 1)
    query.await_termination(30)
    assert query.manifest().checkpoint > manifest.checkpoint
    assert_exact(table, 600)


def test_a_newer_format_is_refused(tmp_path: Path, clock: FakeClock, table: str) -> None:
    finished(tmp_path, clock, table)
    path = newest_manifest(tmp_path)
    manifest = decode_manifest(path.read_bytes())
    assert isinstance(manifest, Manifest)
    path.write_bytes(encode_manifest(msgspec.structs.replace(manifest, format=99)))
    with pytest.raises(FormatTooNew, match="format 99"):
        InlineRun([], clock).start(keyed_slow(clock, table), checkpoint=tmp_path)


@pytest.mark.parametrize("damage", ["delete", "truncate"])
def test_a_missing_or_truncated_file_is_noticed_at_start(
    tmp_path: Path, clock: FakeClock, table: str, damage: str
) -> None:
    """B12."""
    finished(tmp_path, clock, table)
    file = next((tmp_path / "state").rglob("*.arrow"))
    for file in (tmp_path / "state").rglob("*.arrow"):
        file.unlink() if damage == "delete" else file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(MissingFile if damage == "delete" else CorruptFile, match="needed by checkpoint"):
        InlineRun([], clock).start(keyed_slow(clock, table), checkpoint=tmp_path)


@pytest.mark.parametrize("folder", ["state", "segments"])
def test_a_flipped_bit_in_a_file_stops_the_query_with_its_name(
    tmp_path: Path, clock: FakeClock, table: str, folder: str
) -> None:
    """B12: the query fails with the file, and nothing wrong is published."""
    run = InlineRun(batches_of(1000, 2), clock)
    run_until(
        run, keyed_slow(clock, table), lambda e: e.rows_in_flight > 0 and e.checkpoint == 4,
        checkpoint=tmp_path, epoch="100 ms",
    )  # fmt: skip
    for file in (tmp_path / folder).rglob("*.arrow"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0x10
        file.write_bytes(bytes(data))
    with pytest.raises(CorruptFile, match=folder):
        run.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch="100 ms").await_termination(30)


def test_a_source_that_does_not_fit_is_refused_with_both_positions(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """A12."""
    finished(tmp_path, clock, table)
    for accepted, offered in (([0], 1), ([0, 1, 2, 3, 4], 5)):
        run = InlineRun(batches_of(200, 9), clock, accepted=accepted)
        with pytest.raises(SourceMismatch, match=f"micro-batch {offered}, checkpoint .* micro-batch 2"):
            run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)


def test_a_replayed_micro_batch_is_skipped(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """A12: Spark replays the last batch when its commit log missed it."""
    finished(tmp_path, clock, table)
    run = InlineRun(batches_of(200, 4), clock, accepted=[0, 1])
    run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)
    assert_exact(table, 800)


def test_restoring_an_older_checkpoint_than_the_table_holds_is_refused(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """B1, C4."""
    finished(tmp_path, clock, table)
    before = sorted((tmp_path / "manifests").iterdir())
    with pytest.raises(TablePositionMismatch, match="the table holds checkpoint 4"):
        InlineRun([], clock).start(keyed_slow(clock, table, 0), checkpoint=tmp_path, restore=2)
    assert sorted((tmp_path / "manifests").iterdir()) == before


def test_restoring_an_older_checkpoint_works_once_the_table_was_rolled_back(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """B1."""
    run = finished(tmp_path, clock, table)
    del memory_table(table).snapshots[1:]
    run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path, restore=2).await_termination(30)
    assert_exact(table, 600)


def test_a_checkpoint_that_expires_while_it_is_being_restored_is_called_that(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1, B12: another driver retired it and removed its files; nobody deleted anything by hand."""
    run = finished(tmp_path, clock, table)
    verify = Checkpoints.verify_files

    def retired_meanwhile(self: Checkpoints, manifest: Manifest) -> None:
        self.store.delete([manifest_path(2), *manifest.files()])
        verify(self, manifest)

    monkeypatch.setattr(Checkpoints, "verify_files", retired_meanwhile)
    with pytest.raises(NoSuchCheckpoint, match="checkpoint 2 is not in"):
        run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path, restore=2)


def test_a_checkpoint_that_the_source_has_forgotten_is_refused_before_anything_changes(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1, A12: an older one was restored after it, so the source's log ends before it."""
    run = finished(tmp_path, clock, table)
    del memory_table(table).snapshots[1:]
    before = sorted((tmp_path / "manifests").iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(InlineFeed, "remembers", lambda *_: False)
        with pytest.raises(SourceMismatch, match="micro-batch 0, which is not in source/offsets"):
            run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path, restore=2)
    assert sorted((tmp_path / "manifests").iterdir()) == before


def test_a_copied_checkpoint_folder_goes_on_elsewhere(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """B1: paths inside are relative."""
    run = InlineRun(batches_of(1000, 2), clock)
    run_until(
        run, keyed_slow(clock, table), lambda e: e.rows_in_flight > 0 and e.checkpoint == 4,
        checkpoint=tmp_path / "here", epoch="100 ms",
    )  # fmt: skip
    (tmp_path / "here").rename(tmp_path / "there")
    run.start(keyed_slow(clock, table), checkpoint=tmp_path / "there", epoch="100 ms", parallelism=3).await_termination(
        30
    )
    assert_exact(table, 2000)


def test_a_record_that_makes_the_operator_fail_is_shown(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """D8."""

    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        if 77 in batch.column("number").to_pylist():
            raise ZeroDivisionError("seventy-seven")
        return batch

    output = stream_of(SCHEMA).map_batches(fail, name="fragile").write(Memory(table))
    with pytest.raises(OperatorFailed) as caught:
        InlineRun(batches_of(200, 1), clock).start(output, checkpoint=tmp_path).await_termination(30)
    text = str(caught.value)
    assert "fragile" in text
    assert "ZeroDivisionError" in text
    assert '"number":77' in text.replace(" ", "")


def test_files_live_as_long_as_a_retained_checkpoint_needs_them(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """B13: also leftovers of failed attempts are gone at the end."""
    run = InlineRun(batches_of(300, 60), clock, prepare=crash_in_job({3, 7, 20}))
    query = run.start(keyed_slow(clock, table, 0.0003), checkpoint=tmp_path, epoch="50 ms", retain=2)
    query.await_termination(60)
    checkpoints = Checkpoints(LocalStore(tmp_path))
    manifests = [checkpoints.read(number) for number in checkpoints.ids()]
    assert len(manifests) == 2
    needed = set().union(*(manifest.files() for manifest in manifests))
    there = {str(p.relative_to(tmp_path)) for f in ("state", "segments") for p in (tmp_path / f).rglob("*.arrow")}
    assert needed <= there
    # What the last sweep could not see yet is removed by the sweep of the next run.
    run.prepare = lambda cluster: None
    run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path, retain=2).await_termination(60)
    manifests = [checkpoints.read(number) for number in checkpoints.ids()]
    needed = set().union(*(manifest.files() for manifest in manifests))
    there = {str(p.relative_to(tmp_path)) for f in ("state", "segments") for p in (tmp_path / f).rglob("*.arrow")}
    assert there == needed


def test_the_history_tells_what_happened(tmp_path: Path, clock: FakeClock, table: str) -> None:
    finished(tmp_path, clock, table)
    names = [type(event).__name__ for event in decode_events((tmp_path / "events.jsonl").read_bytes())]
    assert names[0] == "QueryStarted"
    assert names[-1] == "QueryStopped"
    assert names.count("EpochPublished") == 4  # the takeover, and three micro-batches
    assert "Committed" in names


def test_an_unknown_operator_cannot_be_rescaled(tmp_path: Path, clock: FakeClock, table: str) -> None:
    query = InlineRun(batches_of(10, 1), clock).start(keyed_slow(clock, table), checkpoint=tmp_path)
    for wanted in ({"slwo": 2}, {"slow": 0}, {"slow": 129}, 0):
        with pytest.raises(ConfigError):
            query.rescale(wanted)
    query.await_termination(30)
