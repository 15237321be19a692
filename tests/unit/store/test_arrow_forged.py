"""Arrow files whose checksums fit and whose content cannot be true: an error, never memory of somebody else."""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import CorruptFile
from penstock.store.arrowcheck import BatchCheck, fault_in_message
from penstock.store.arrowfile import ArrowFile, ArrowFileWriter, Compression
from penstock.store.arrowindex import TRAILER, checksum_of, seal
from penstock.store.local import LocalStore
from penstock.store.memory import MemoryStore

WORDS = ["one", "two", None, "", "five"]


def file_of(column: pa.Array, compression: Compression | None = None) -> tuple[MemoryStore, bytearray]:
    store = MemoryStore()
    batch = pa.record_batch([column], ["c"])
    writer = ArrowFileWriter(store, "f", batch.schema, kind="state", compression=compression)
    writer.write(batch, np.zeros(len(column), np.int64))
    writer.close()
    return store, bytearray(store.read("f"))


def reseal(data: bytearray) -> MemoryStore:
    """The file with checksums that fit what is in it."""
    length = TRAILER.unpack(data[-TRAILER.size :])[0]
    index = msgspec.json.decode(data[-TRAILER.size - length : -TRAILER.size])
    for info in index["batches"]:
        info["checksum"] = checksum_of(bytes(data[info["offset"] : info["offset"] + info["length"]]))
    encoded = msgspec.json.encode(index)
    store = MemoryStore()
    store.create("f", bytes(data[: -TRAILER.size - length]) + encoded + seal(encoded))
    return store


def with_words(data: bytearray, old: bytes, new: bytes) -> bytearray:
    assert data.count(old) == 1
    return data.replace(old, new)


def offsets_of(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


@pytest.mark.parametrize(
    "offsets",
    [
        (0, 3, 6, 6, 6, 1 << 30),
        (0, 1 << 30, 6, 6, 6, 10),
        (0, -5, 6, 6, 6, 10),
        (-4, 3, 6, 6, 6, 10),
        (0, 6, 3, 6, 6, 10),
    ],
)
def test_offsets_beyond_their_buffer_or_backwards_are_corrupt(offsets: tuple[int, ...]) -> None:
    _, data = file_of(pa.array(WORDS))
    store = reseal(with_words(data, offsets_of(0, 3, 6, 6, 6, 10), offsets_of(*offsets)))
    with ArrowFile(store, "f") as file, pytest.raises(CorruptFile, match="no batch that Penstock has written"):
        file.read_batch(0)


def harmless(batch: pa.RecordBatch) -> bool:
    """Arrow's own full check finds nothing but texts that are not UTF-8."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        return "UTF8" in str(error)
    return True


@pytest.mark.parametrize(
    "column",
    [
        pa.array([["a", "b"], None, ["ccc"]]),
        pa.array([[("k", "vvv")], [("q", "w"), ("e", "r")]], pa.map_(pa.string(), pa.string())),
        pa.array([{"x": "abc"}, {"x": "defg"}]),
        pa.array([["abc", "de"], ["f", "ghij"]], pa.list_(pa.string(), 2)),
        pa.array(["abc", "defg"], pa.large_string()),
        pa.array([[["a"], ["bb", "c"]], []]),
    ],
    ids=lambda column: str(column.type),
)
def test_offsets_are_checked_at_every_depth(column: pa.Array) -> None:
    """Each word of every offset buffer, turned into nonsense, is noticed, or Arrow never looks at it."""
    check = BatchCheck(pa.schema([("c", column.type)]))
    store, data = file_of(column)
    with ArrowFile(store, "f") as file:
        info, whole = file.batches[0], file.read_batch(0)
    assert check.fault(whole) is None
    body = info.offset + 8 + struct.unpack_from("<i", data, info.offset + 4)[0]
    noticed = 0
    for place in range(body, info.offset + info.length - 3, 4):
        broken = bytearray(data)
        struct.pack_into("<i", broken, place, 0x7FFF0000)
        with ArrowFile(reseal(broken), "f") as file:
            try:
                batch = file.read_batch(0)
            except CorruptFile:
                noticed += 1
            else:
                assert harmless(batch)
    assert noticed


@pytest.mark.parametrize("claim", [1 << 45, 2**63 - 1, 1 << 33, -2])
def test_a_compressed_buffer_that_claims_too_much_is_refused_before_memory_is_asked_for(claim: int) -> None:
    _, data = file_of(pa.array(["word" * 100] * 1000), "lz4")
    length = TRAILER.unpack(data[-TRAILER.size :])[0]
    info = msgspec.json.decode(data[-TRAILER.size - length : -TRAILER.size])["batches"][0]
    body = info["offset"] + 8 + struct.unpack_from("<i", data, info["offset"] + 4)[0]
    sizes = [place for place in range(body, info["offset"] + info["length"] - 8, 8)
             if struct.unpack_from("<q", data, place)[0] == 400_000]  # fmt: skip
    struct.pack_into("<q", data, sizes[0], claim)
    with ArrowFile(reseal(data), "f") as file, pytest.raises(CorruptFile, match="claim"):
        file.read_batch(0)


def test_a_large_record_that_compresses_well_still_passes() -> None:
    store, _ = file_of(pa.array(["0" * (80 << 20)]), "lz4")
    with ArrowFile(store, "f") as file:
        assert len(file.read_batch(0).column(0)[0].as_py()) == 80 << 20


def test_text_that_is_not_utf8_passes_because_rows_may_hold_it() -> None:
    column = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(offsets_of(0, 2)), pa.py_buffer(b"\xff\xfe")])
    store, _ = file_of(column)
    with ArrowFile(store, "f") as file:
        assert file.read_batch(0).column(0).cast(pa.binary()).to_pylist() == [b"\xff\xfe"]


@pytest.mark.parametrize(
    "message", [b"", b"\xff" * 8, b"\xff\xff\xff\xff\x10\x00\x00\x00" + bytes(16), b"\xff\xff\xff\xff\xff\xff\xff\x7f"]
)
def test_bytes_that_are_no_message_are_told_so(message: bytes) -> None:
    assert fault_in_message(message, 1) is not None


def test_a_mapped_file_is_checked_like_any_other(tmp_path: pytest.TempPathFactory) -> None:
    _, data = file_of(pa.array(WORDS))
    broken = reseal(with_words(data, offsets_of(0, 3, 6, 6, 6, 10), offsets_of(0, 6, 3, 6, 6, 10)))
    local = LocalStore(str(tmp_path))
    local.create("f", broken.read("f"))
    with ArrowFile(local, "f", mapped=True) as file:
        for _ in range(2):
            with pytest.raises(CorruptFile):
                file.read_batch(0)


@pytest.mark.parametrize("spoil", [lambda data: data.__setitem__(20, 0xFF), lambda data: data.__setitem__(4, 0xFF)])
def test_a_schema_that_cannot_be_decoded_is_corrupt(spoil: Callable[[bytearray], None]) -> None:
    _, data = file_of(pa.array(WORDS))
    length = TRAILER.unpack(data[-TRAILER.size :])[0]
    index = msgspec.json.decode(data[-TRAILER.size - length : -TRAILER.size])
    stream = data[: -TRAILER.size - length]
    spoil(stream)
    index["schema"]["checksum"] = checksum_of(bytes(stream[: index["schema"]["length"]]))
    encoded = msgspec.json.encode(index)
    store = MemoryStore()
    store.create("f", bytes(stream) + encoded + seal(encoded))
    with pytest.raises(CorruptFile):
        ArrowFile(store, "f")
