"""The container of segments and state files: what was written, or a `CorruptFile`."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import CorruptFile, FormatTooNew, MissingFile
from penstock.store import LocalStore, MemoryStore, Store, arrowfile
from penstock.store.arrowfile import ArrowFile, ArrowFileWriter, BatchInfo, Compression, FileInfo, checksum_of
from penstock.store.readbuffer import ReadBuffer

SCHEMA = pa.schema(
    [("number", pa.int64()), ("text", pa.string()), ("ratio", pa.float64()), ("tags", pa.list_(pa.string()))]
)


def batch_of(rows: int, seed: int = 0) -> pa.RecordBatch:
    rng = random.Random(seed)
    texts = [None if rng.random() < 0.1 else "x" * rng.randrange(20) for _ in range(rows)]
    return pa.record_batch(
        [
            pa.array([rng.getrandbits(40) for _ in range(rows)], pa.int64()),
            pa.array(texts, pa.string()),
            pa.array([rng.random() for _ in range(rows)], pa.float64()),
            pa.array([["a"] * rng.randrange(3) for _ in range(rows)], pa.list_(pa.string())),
        ],
        schema=SCHEMA,
    )


BATCHES = [batch_of(50, 1), batch_of(1, 2), batch_of(300, 3), batch_of(0, 4)]


def write_file(
    store: Store, path: str = "f", compression: Compression | None = "lz4", batches: list[pa.RecordBatch] = BATCHES
) -> FileInfo:
    writer = ArrowFileWriter(store, path, SCHEMA, kind="segment", compression=compression, meta={"epoch": 3})
    for batch in batches:
        writer.write(batch, np.arange(batch.num_rows) % 7)
    return writer.close()


def read_all(file: ArrowFile) -> list[pa.RecordBatch]:
    with file:
        return [file.read_batch(number) for number in range(len(file.batches))]


def batches_of(file: ArrowFile) -> list[BatchInfo]:
    with file:
        return file.batches


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path) if request.param == "local" else MemoryStore()


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("compression", ["lz4", "zstd", None])
def test_batches_are_read_as_they_were_written(store: Store, compression: Compression | None, mapped: bool) -> None:
    info = write_file(store, compression=compression)
    file = ArrowFile(store, "f", info.checksum, mapped=mapped)
    assert read_all(file) == BATCHES
    assert (file.schema, file.rows, file.meta) == (SCHEMA, 351, {"epoch": 3})
    assert (file.kind, file.compression) == ("segment", compression)


def test_the_info_tells_rows_bytes_and_the_checksum_of_the_index(store: Store) -> None:
    info = write_file(store)
    [entry] = store.list("")
    data = store.read("f")
    length, _, magic = struct.unpack("<IQ8s", data[-20:])
    assert info == FileInfo("f", 351, entry.bytes, checksum_of(data[-20 - length : -20]))
    assert magic == b"PENSTOCK"


@pytest.mark.parametrize("compression", ["lz4", None])
def test_the_file_is_an_ordinary_arrow_stream(store: Store, compression: Compression | None) -> None:
    write_file(store, compression=compression)
    with pa.ipc.open_stream(io.BytesIO(store.read("f"))) as stream:
        assert list(stream) == BATCHES


def test_the_index_counts_the_rows_of_each_key_group(store: Store) -> None:
    writer = ArrowFileWriter(store, "f", SCHEMA, kind="segment", compression="lz4")
    writer.write(batch_of(5), np.array([3, 90, 3, 127, 3]))
    writer.close()
    [info] = batches_of(ArrowFile(store, "f"))
    assert (info.groups, info.counts) == ([3, 90, 127], [3, 1, 1])
    assert [info.rows_in(*span) for span in ((0, 128), (0, 3), (3, 4), (4, 91), (90, 128))] == [5, 0, 3, 1, 2]


def test_a_batch_written_without_key_groups_cannot_be_asked_for_them(store: Store) -> None:
    writer = ArrowFileWriter(store, "f", SCHEMA, kind="state")
    writer.write(batch_of(5))
    writer.close()
    with pytest.raises(AssertionError, match="without key groups"):
        batches_of(ArrowFile(store, "f"))[0].rows_in(0, 1)


def test_a_slice_is_stored_without_the_rest_of_its_batch(store: Store) -> None:
    whole = batch_of(10_000)
    info = write_file(store, compression=None, batches=[whole.slice(5000, 10)])
    assert info.bytes < 3000
    assert read_all(ArrowFile(store, "f")) == [whole.slice(5000, 10)]


def test_an_aborted_file_is_gone(store: Store) -> None:
    writer = ArrowFileWriter(store, "f", SCHEMA, kind="segment", compression="lz4")
    writer.write(batch_of(10), np.zeros(10, np.int64))
    writer.abort()
    assert store.list("") == []


def test_dictionary_columns_are_refused(store: Store) -> None:
    schema = pa.schema([("a", pa.list_(pa.dictionary(pa.int32(), pa.string())))])
    with pytest.raises(AssertionError, match="dictionary"):
        ArrowFileWriter(store, "f", schema, kind="segment")


def test_a_file_that_is_gone_is_missing_and_not_corrupt(store: Store) -> None:
    with pytest.raises(MissingFile):
        ArrowFile(store, "f")


# --- damage ----------------------------------------------------------------------------------------------------------


def damaged(store: Store, path: str, change: Callable[[bytearray], object]) -> None:
    data = bytearray(store.read("f"))
    change(data)
    store.create(path, bytes(data))


@pytest.mark.parametrize("compression", ["lz4", None])
@pytest.mark.parametrize("mapped", [False, True])
def test_every_flipped_bit_is_found_when_the_file_is_read(
    tmp_path: Path, compression: Compression | None, mapped: bool
) -> None:
    store = LocalStore(tmp_path)
    info = write_file(store, compression=compression)
    rng = random.Random(7)
    # The schema, the end-of-stream marker, the index and the trailer are small: they get flips of their own.
    offsets = {0, 5, info.bytes - 1, *rng.sample(range(info.bytes), 140), *range(info.bytes - 40, info.bytes)}
    index_length = struct.unpack("<I", store.read("f")[-20:-16])[0]
    offsets |= set(range(info.bytes - 20 - index_length - 8, info.bytes - 20 - index_length + 8))
    for offset in sorted(offsets):
        bit = 1 << rng.randrange(8)
        damaged(store, f"flipped/{offset}", lambda data, at=offset, bit=bit: data.__setitem__(at, data[at] ^ bit))
        with pytest.raises(CorruptFile, match=f"flipped/{offset}"):
            read_all(ArrowFile(store, f"flipped/{offset}", mapped=mapped))


def test_a_file_cut_anywhere_is_corrupt(store: Store) -> None:
    info = write_file(store)
    for size in {0, 1, 19, 20, 21, info.bytes - 1, info.bytes - 20, *range(100, info.bytes, 97)}:
        damaged(store, f"cut/{size}", lambda data, size=size: data.__delitem__(slice(size, None)))
        with pytest.raises(CorruptFile, match=f"cut/{size}"):
            ArrowFile(store, f"cut/{size}", info.checksum)


def test_a_file_cut_after_it_was_opened_is_corrupt(tmp_path: Path) -> None:
    info = write_file(LocalStore(tmp_path))
    with ArrowFile(LocalStore(tmp_path), "f", info.checksum) as file:
        (tmp_path / "f").write_bytes(b"")
        with pytest.raises(CorruptFile, match="f ends at byte"):
            file.read_batch(0)


def test_a_damaged_batch_is_named_with_both_checksums(store: Store) -> None:
    info = write_file(store)
    batch = batches_of(ArrowFile(store, "f", info.checksum))[2]
    damaged(store, "g", lambda data: data.__setitem__(batch.offset + 200, data[batch.offset + 200] ^ 1))
    with ArrowFile(store, "g", info.checksum) as file:
        assert file.read_batch(1) == BATCHES[1]
        with pytest.raises(
            CorruptFile, match=rf"batch 2 has checksum \w{{16}}, {batch.checksum} was written"
        ) as caught:
            file.read_batch(2)
    assert caught.value.fields["path"] == "g"


def test_another_file_under_the_right_name_is_corrupt(store: Store) -> None:
    first = write_file(store)
    write_file(store, "g", batches=[batch_of(3)])
    with pytest.raises(CorruptFile, match=f"the checkpoint names {first.checksum}"):
        ArrowFile(store, "g", first.checksum)


def with_index(store: Store, change: Callable[[dict[str, object]], object]) -> None:
    """The file "f" with a changed index and a trailer that fits it."""

    def rewrite(data: bytearray) -> None:
        length = struct.unpack("<I", data[-20:-16])[0]
        index = msgspec.json.decode(data[-20 - length : -20])
        change(index)
        encoded = msgspec.json.encode(index)
        trailer = struct.pack("<IQ8s", len(encoded), int(checksum_of(encoded), 16), b"PENSTOCK")
        data[-20 - length :] = encoded + trailer

    damaged(store, "g", rewrite)


def test_a_newer_format_says_so(store: Store) -> None:
    write_file(store)
    with_index(store, lambda index: index.update(version=99, something="new"))
    with pytest.raises(FormatTooNew, match="version 99"):
        ArrowFile(store, "g")


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (lambda index: index.update(something="else"), "cannot be decoded"),
        (lambda index: index.pop("version"), "cannot be decoded"),
        (lambda index: index["batches"].pop(), "its batches end at byte"),
        (lambda index: index["batches"].pop(0), "batch 0 begins at byte"),
        (lambda index: index["batches"][0].update(rows=51), "batch 0 do not add up to its 51 rows"),
        (
            lambda index: index["batches"][0].update(rows=51, groups=[], counts=[]),
            "batch 0 .* has 50 rows, its index says 51",
        ),
        (lambda index: index["batches"][0].update(length=-8), "cannot be decoded"),
    ],
)
def test_an_index_that_does_not_fit_its_file_is_corrupt(
    store: Store, change: Callable[[dict[str, object]], object], seen: str
) -> None:
    write_file(store)
    with_index(store, change)
    with pytest.raises(CorruptFile, match=seen):
        read_all(ArrowFile(store, "g"))


def test_an_index_larger_than_the_first_read_is_read_whole(store: Store) -> None:
    batches = [batch_of(2, seed) for seed in range(600)]
    info = write_file(store, batches=batches)
    assert struct.unpack("<I", store.read("f")[-20:-16])[0] > 32 << 10
    assert read_all(ArrowFile(store, "f", info.checksum)) == batches


# --- memory ----------------------------------------------------------------------------------------------------------


def test_mapped_batches_of_an_uncompressed_file_point_into_the_mapping(tmp_path: Path) -> None:
    """D6: state far larger than memory works, because the page cache holds it."""
    info = write_file(LocalStore(tmp_path), compression=None)
    allocated = pa.total_allocated_bytes()
    file = ArrowFile(LocalStore(tmp_path), "f", info.checksum, mapped=True)
    batch = file.read_batch(2)
    file.close()
    assert pa.total_allocated_bytes() == allocated
    assert batch == BATCHES[2]


def test_a_mapped_batch_is_verified_once_per_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    info = write_file(store, compression=None)
    read_all(ArrowFile(store, "f", info.checksum, mapped=True))
    again = ArrowFile(store, "f", info.checksum, mapped=True)
    monkeypatch.setattr(arrowfile, "checksum_of", lambda _: pytest.fail("verified again"))
    assert read_all(again) == BATCHES


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_batches_read_through_the_reusable_buffer_own_their_memory(store: Store, compression: Compression) -> None:
    """B4"""
    info = write_file(store, compression=compression)
    buffer = ReadBuffer()
    file = ArrowFile(store, "f", info.checksum, buffer=buffer)
    batches = read_all(file)
    with buffer.use(buffer.bytes) as view:
        view[:] = b"\xff" * view.nbytes
    assert batches == BATCHES


def test_arrays_that_a_writer_left_uncompressed_do_not_point_into_the_reusable_buffer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B4: the format lets a writer skip compression where it does not pay."""
    monkeypatch.setattr(ArrowFileWriter, "_encode", lambda _, batch: memoryview(batch.serialize()))
    info = write_file(store, compression="lz4")
    file = ArrowFile(store, "f", info.checksum)
    assert read_all(file) == BATCHES


def test_the_read_buffer_is_made_lazily_grows_to_the_largest_batch_and_is_freed(store: Store) -> None:
    """B4"""
    info = write_file(store)
    buffer = ReadBuffer()
    file = ArrowFile(store, "f", info.checksum, buffer=buffer)
    assert buffer.bytes == 0
    read_all(file)
    schema_bytes = file.batches[0].offset  # stands before each batch, so that it can be decoded as a stream
    assert buffer.bytes == schema_bytes + max(batch.length for batch in file.batches)
    buffer.close()
    assert buffer.bytes == 0


def test_a_read_buffer_in_use_twice_fails_loudly(store: Store) -> None:
    """B4"""
    info = write_file(store)
    buffer = ReadBuffer()
    with ArrowFile(store, "f", info.checksum, buffer=buffer) as file:
        with buffer.use(10), pytest.raises(AssertionError, match="in use already"):
            file.read_batch(0)
        assert file.read_batch(0) == BATCHES[0]


def test_a_closed_read_buffer_fails_loudly() -> None:
    buffer = ReadBuffer()
    buffer.close()
    with pytest.raises(AssertionError, match="closed"), buffer.use(1):
        pass
