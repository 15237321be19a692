"""FORMAT.md is enough to read a checkpoint: the reader below is written from it, and uses nothing of Penstock.

The golden files were written by `tests.support.golden_checkpoint`. They are never written again to make a test pass.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import xxhash

from penstock.engine.checkpoints import Checkpoints, Driver
from penstock.engine.origin import Restored
from penstock.errors import CorruptFile
from penstock.inflight.reader import PrefetchingReader
from penstock.observe import events
from penstock.protocol import manifest as values
from penstock.protocol.codec import encode_manifest
from penstock.protocol.ids import CheckpointId
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.plan import reads_of
from penstock.protocol.report import ErrorReport
from penstock.state.keyed import KeyedState
from penstock.store import LocalStore, arrowindex
from tests.support import golden_checkpoint as golden

FORMAT = Path(__file__).resolve().parents[2] / "FORMAT.md"


# --- a reader written from FORMAT.md alone ------------------------------------------------------------------------


def checksum(data: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(data)


def read_manifest(folder: Path, number: int) -> dict[str, Any]:
    """Section 2."""
    body, seal, rest = (folder / "manifests" / f"{number:010d}.json").read_bytes().split(b"\n")
    assert rest == b""
    assert json.loads(seal) == {"xxh3_64": checksum(body)}
    manifest: dict[str, Any] = json.loads(body)
    assert manifest["format"] == 1
    return manifest


def read_arrow(folder: Path, file: dict[str, Any], kind: str) -> tuple[dict[str, Any], pa.Table]:
    """Section 5: the index and all rows, after checking every byte."""
    data = (folder / file["path"]).read_bytes()
    assert len(data) == file["bytes"]
    length, digest, magic = struct.unpack("<IQ8s", data[-20:])
    assert magic == b"PENSTOCK"
    encoded = data[-20 - length : -20]
    assert f"{digest:016x}" == checksum(encoded) == file["checksum"]
    index: dict[str, Any] = json.loads(encoded)
    assert (index["version"], index["kind"]) == (1, kind)
    end = index["schema"]["length"]
    assert checksum(data[:end]) == index["schema"]["checksum"]
    for batch in index["batches"]:
        assert batch["offset"] == end
        end += batch["length"]
        assert checksum(data[batch["offset"] : end]) == batch["checksum"]
    assert data[end : -20 - length] == bytes.fromhex("FFFFFFFF00000000")
    table = pa.ipc.open_stream(pa.BufferReader(data)).read_all()
    assert table.num_rows == file["rows"] == sum(batch["rows"] for batch in index["batches"])
    assert [chunk.num_rows for chunk in table.to_batches()] == [batch["rows"] for batch in index["batches"]]
    return index, table


def inside(group: int, ranges: list[list[int]]) -> bool:
    return any(lo <= group < hi for lo, hi in ranges)


def in_flight(folder: Path, manifest: dict[str, Any], edge: str) -> list[tuple[Any, ...]]:
    """Section 3: the unread rows of an edge, in the order in which they are to be processed."""
    found = []
    order = lambda segment: (  # noqa: E731
        segment.get("arrival", segment["epoch"]),
        segment["epoch"],
        segment["producer"],
        segment["sequence"],
    )
    for segment in sorted(manifest["edges"][edge]["segments"], key=order):
        _, table = read_arrow(folder, segment, "segment")
        assert table.schema.names[-1] == "__penstock_hash"
        for number, row in enumerate(zip(*(column.to_pylist() for column in table.columns), strict=True)):
            group = row[-1] % manifest["max_parallelism"]
            if any(number >= cursor and inside(group, ranges) for ranges, cursor, _ in segment["spans"]):
                found.append(row[:-1])
    return found


def live_state(folder: Path, manifest: dict[str, Any], operator: str) -> Iterator[tuple[Any, ...]]:
    """Section 4: key and values of every live key."""
    bits = (manifest["max_parallelism"] - 1).bit_length()
    newest: dict[Any, tuple[Any, ...] | None] = {}
    for file in manifest["state"][operator]:
        _, table = read_arrow(folder, file, "state")
        rows = table.to_pylist()
        assert [row["__order"] for row in rows] == sorted(row["__order"] for row in rows)
        for row in rows:
            if inside(row["__order"] >> (64 - bits), file["ranges"]):
                newest[row["user"]] = None if row.get("__deleted") else (row["user"], row["n"], row["total"])
    return (entry for entry in newest.values() if entry is not None)


def spark_hash(user: int | None) -> int:
    """Section 6, for one key column of type bigint."""
    unsigned = 42 if user is None else xxhash.xxh64_intdigest(struct.pack("<q", user), 42)
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


# --- a stranger reads the golden files ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    return read_manifest(golden.GOLDEN, golden.CHECKPOINT)


def expected_in_flight() -> list[tuple[int | None, str | None]]:
    return [
        row
        for number, row in enumerate(golden.clicks())
        if number >= golden.CURSORS.get(spark_hash(row[0]) % golden.MAX_PARALLELISM, len(golden.clicks()))
    ]


def test_a_stranger_finds_the_records_in_flight(manifest: dict[str, Any]) -> None:
    assert in_flight(golden.GOLDEN, manifest, golden.EDGE) == expected_in_flight()


def test_a_stranger_finds_that_records_add_up(manifest: dict[str, Any]) -> None:
    edge = manifest["edges"][golden.EDGE]
    left = [rows_left for segment in edge["segments"] for _, _, rows_left in segment["spans"]]
    assert sum(left) == len(expected_in_flight())
    assert edge["accepted"] == edge["consumed"] + edge["dropped"] + sum(left)


def test_a_stranger_finds_the_live_state(manifest: dict[str, Any]) -> None:
    found = sorted(live_state(golden.GOLDEN, manifest, golden.OPERATOR))
    assert found == [(user, *row) for user, row in sorted(golden.totals().items())]


def test_a_stranger_computes_the_hash_of_every_key(manifest: dict[str, Any]) -> None:
    (segment,) = manifest["edges"][golden.EDGE]["segments"]
    _, table = read_arrow(golden.GOLDEN, segment, "segment")
    assert table["__penstock_hash"].to_pylist() == [spark_hash(user) for user, _ in golden.clicks()]


def test_a_stranger_computes_the_order_of_every_key(manifest: dict[str, Any]) -> None:
    bits = (golden.MAX_PARALLELISM - 1).bit_length()
    for file in manifest["state"][golden.OPERATOR]:
        _, table = read_arrow(golden.GOLDEN, file, "state")
        for row in table.to_pylist():
            hashed = spark_hash(row["user"])
            group, unsigned = hashed % golden.MAX_PARALLELISM, hashed % (1 << 64)
            assert row["__order"] == group << (64 - bits) | unsigned >> bits


def test_a_stranger_finds_the_histogram_of_key_groups_right(manifest: dict[str, Any]) -> None:
    (segment,) = manifest["edges"][golden.EDGE]["segments"]
    index, table = read_arrow(golden.GOLDEN, segment, "segment")
    for info, batch in zip(index["batches"], table.to_batches(), strict=True):
        groups, counts = np.unique(batch["__penstock_hash"].to_numpy() % golden.MAX_PARALLELISM, return_counts=True)
        assert (info["groups"], info["counts"]) == (groups.tolist(), counts.tolist())


def test_the_golden_files_hold_every_case_that_the_format_knows(manifest: dict[str, Any]) -> None:
    """Deletions, files valid in a part of their key groups, a span of two ranges, several batches, a payload."""
    files = [read_arrow(golden.GOLDEN, file, "state")[1] for file in manifest["state"][golden.OPERATOR]]
    (segment,) = manifest["edges"][golden.EDGE]["segments"]
    (pending,) = manifest["sinks"][golden.SINK]["pending"]
    assert any("__deleted" in table.schema.names and any(table["__deleted"].to_pylist()) for table in files)
    assert {tuple(map(tuple, file["ranges"])) for file in manifest["state"][golden.OPERATOR]} == {((0, 6),), ((6, 12),)}
    assert [len(ranges) for ranges, _, _ in segment["spans"]] == [1, 2]
    assert len(read_arrow(golden.GOLDEN, segment, "segment")[0]["batches"]) == 2
    assert [committable["payload"] for committable in pending["committables"]] == ["AP9jb21taXQ="]


# --- and so does this library -------------------------------------------------------------------------------------


@pytest.fixture
def ours() -> values.Manifest:
    checkpoints = Checkpoints(LocalStore(golden.GOLDEN))
    manifest = checkpoints.read(CheckpointId(golden.CHECKPOINT))
    checkpoints.verify_files(manifest)
    return manifest


def test_the_golden_manifest_is_written_again_byte_for_byte(ours: values.Manifest) -> None:
    assert encode_manifest(ours) == (golden.GOLDEN / "manifests" / "0000000005.json").read_bytes()


def test_the_records_in_flight_of_the_golden_files_are_read(ours: values.Manifest) -> None:
    reads = reads_of(ours.edges[golden.EDGE], KeyGroupRange(0, golden.MAX_PARALLELISM))
    found = []
    with PrefetchingReader(LocalStore(golden.GOLDEN), reads, golden.MAX_PARALLELISM) as reader:
        while (batch := reader.peek()) is not None:
            found += [(row["user"], row["word"]) for row in batch.to_pylist()]
            reader.advance(batch.num_rows)
    assert sorted(found, key=str) == sorted(expected_in_flight(), key=str)


@pytest.mark.parametrize("lo", [0, 6])
def test_the_state_of_the_golden_files_is_read(ours: values.Manifest, lo: int) -> None:
    """By the two subtasks that the parallelism of the manifest speaks of."""
    groups = KeyGroupRange(lo, lo + 6)
    state = KeyedState.open(
        LocalStore(golden.GOLDEN), ours.state[golden.OPERATOR], groups, golden.STATE, golden.MAX_PARALLELISM
    )
    found = {row["user"]: (row["n"], row["total"]) for batch in state.scan() for row in batch.to_pylist()}
    state.close()
    assert found == {
        user: row for user, row in golden.totals().items() if lo <= spark_hash(user) % golden.MAX_PARALLELISM < lo + 6
    }


def test_the_payload_of_the_golden_files_is_read(ours: values.Manifest) -> None:
    (pending,) = ours.sinks[golden.SINK].pending
    assert pending.committables == (values.Committable(golden.PAYLOAD, 3, 1234),)


def test_a_golden_manifest_with_one_bit_turned_is_refused(tmp_path: Path) -> None:
    data = bytearray((golden.GOLDEN / "manifests" / "0000000005.json").read_bytes())
    data[data.index(b"490")] ^= 1
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "0000000005.json").write_bytes(data)
    with pytest.raises(CorruptFile, match="checksum"):
        Checkpoints(LocalStore(tmp_path)).read(CheckpointId(golden.CHECKPOINT))


# --- and nothing is left out of FORMAT.md -------------------------------------------------------------------------

STORED: list[type[msgspec.Struct]] = [
    *(kind for kind in vars(values).values() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)),
    *(arrowindex.Index, arrowindex.SchemaInfo, arrowindex.BatchInfo),
    *(Driver, Restored, ErrorReport, events.BytesWritten, *get_args(events.Event)),
]


@pytest.mark.parametrize("kind", STORED, ids=lambda kind: kind.__name__)
def test_every_stored_field_is_described(kind: type[msgspec.Struct]) -> None:
    described = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`\n]+`", FORMAT.read_text(encoding="utf-8")))))
    assert set(kind.__struct_fields__) - described - {"lo", "hi"} == set()


@pytest.mark.parametrize("kind", get_args(events.Event), ids=lambda kind: kind.__name__)
def test_every_event_is_described_with_its_fields(kind: type[msgspec.Struct]) -> None:
    row = re.search(rf"^\| `{kind.__name__}` \|(.*)\|$", FORMAT.read_text(encoding="utf-8"), re.MULTILINE)
    assert row is not None
    assert set(kind.__struct_fields__) - {"at"} - set(re.findall(r"`(\w+)`", row[1])) == set()


def test_the_versions_are_those_of_the_code() -> None:
    text = FORMAT.read_text(encoding="utf-8")
    assert f"version {values.FORMAT_VERSION}" in text.splitlines()[0]
    assert f"| `version` | int | {arrowindex.ARROW_FILE_VERSION};" in text
