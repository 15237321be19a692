"""The container of segments and state files: an Arrow IPC stream that anyone can read, then an index of its batches.

Layout: schema message, record batch messages, end-of-stream marker, index (JSON), `TRAILER`. Every byte is covered:
the index holds checksums of the schema and of each batch, the trailer that of the index, and a manifest repeats the
latter. A reader that got a batch got what was written, or a `CorruptFile`.
"""

from __future__ import annotations

import errno
import os
import stat
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self

import msgspec
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import CorruptFile, FormatTooNew, storage_failed
from penstock.store.arrowcheck import BatchCheck, fault_in_message
from penstock.store.arrowindex import (
    ARROW_FILE_VERSION,
    MAGIC,
    TRAILER,
    BatchInfo,
    Compression,
    Index,
    IndexVersion,
    Meta,
    SchemaInfo,
    checksum_of,
    histogram,
    seal,
)
from penstock.store.base import FileReader, Store
from penstock.store.memory import MemoryReader
from penstock.store.readbuffer import ReadBuffer

__all__ = ["ArrowFile", "ArrowFileWriter", "BatchInfo", "Compression", "FileInfo", "checksum_of"]

_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
# Spark already runs a task per core; (de)compressing in more threads would only make them wait for each other.
_READ_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)
_MAP_TRIES = 2
"""How often to fetch a copy again: on a full disk the next copy may disappear as quickly."""
_TAIL_GUESS_BYTES = 32 << 10  # holds the index of most files, so that opening one costs one read

# Batches of memory-mapped files that this process has verified: (store, path, file checksum, file on this machine,
# batch). A copy that was fetched anew is another file.
_verified: set[tuple[str, str, str, FileStamp, int]] = set()
_VERIFIED_MAX = 1 << 16


class FileStamp(NamedTuple):
    """Tells a file on this machine from another one of the same name."""

    written_ns: int
    inode: int
    bytes: int


class FileInfo(NamedTuple):
    """A finished file; `checksum` is that of its index, and so covers all of it."""

    path: str
    rows: int
    bytes: int
    checksum: str


class ArrowFileWriter:
    """Writes one file; it counts only after `close`."""

    def __init__(
        self,
        store: Store,
        path: str,
        schema: pa.Schema,
        *,
        kind: str,
        compression: Compression | None = None,
        meta: Meta | None = None,
    ) -> None:
        assert not has_dictionary(schema), "dictionary columns are decoded before they are stored"
        self._path, self._schema, self._kind, self._compression = path, schema, kind, compression
        self._meta = meta or {}
        self._options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        self._schema_message = schema.serialize()
        self._batches: list[BatchInfo] = []
        self._rows = 0
        self._file = store.open_writer(path)
        try:
            self._file.write(memoryview(self._schema_message))
        except BaseException:
            self._file.abort()
            raise

    @property
    def bytes_written(self) -> int:
        return self._file.tell()

    @property
    def rows(self) -> int:
        return self._rows

    def write(self, batch: pa.RecordBatch, groups: npt.NDArray[Any] | None = None) -> None:
        """Adds a batch; `groups` holds the key group of each row."""
        assert batch.schema.equals(self._schema), f"{self._path}: the batch has another schema"
        assert groups is None or len(groups) == batch.num_rows
        message = self._encode(batch)
        present, counts = ([], []) if groups is None else histogram(groups)
        info = BatchInfo(
            offset=self._file.tell(),
            length=message.nbytes,
            rows=batch.num_rows,
            checksum=checksum_of(message),
            groups=present,
            counts=counts,
        )
        self._file.write(message)
        self._batches.append(info)
        self._rows += info.rows

    def close(self) -> FileInfo:
        index = Index(
            version=ARROW_FILE_VERSION,
            kind=self._kind,
            compression=self._compression,
            schema=SchemaInfo(self._schema_message.size, checksum_of(self._schema_message)),
            batches=self._batches,
            meta=self._meta,
        )
        encoded = msgspec.json.encode(index)
        self._file.write(_END_OF_STREAM)
        self._file.write(encoded)
        self._file.write(seal(encoded))
        bytes_written = self._file.tell()
        self._file.close()
        return FileInfo(self._path, self._rows, bytes_written, checksum_of(encoded))

    def abort(self) -> None:
        self._file.abort()

    def _encode(self, batch: pa.RecordBatch) -> memoryview:
        if self._compression is None:
            return memoryview(batch.serialize())
        # `serialize` cannot compress; a stream of one batch can, and begins with the same schema message.
        sink = pa.BufferOutputStream()
        pa.ipc.new_stream(sink, self._schema, options=self._options).write_batch(batch)
        stream = memoryview(sink.getvalue())
        assert stream[: self._schema_message.size] == memoryview(self._schema_message)
        return stream[self._schema_message.size :]


class ArrowFile:
    """An open file: its index is read and verified at once, its batches when asked for.

    With `mapped`, batches of a file on a local disk are memory-mapped, and verified once per process; batches of an
    uncompressed file then cost no copy. Where there is nothing to map, they are put down when they have been read, so
    that many of them may be kept. Otherwise compressed batches are read through `buffer`.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        expected_checksum: str | None = None,
        *,
        mapped: bool = False,
        buffer: ReadBuffer | None = None,
    ) -> None:
        self._store, self._path, self._mapped = store, path, mapped
        self._reader: FileReader
        self._own_buffer = ReadBuffer() if buffer is None else None
        self._buffer = buffer or self._own_buffer
        try:
            index = self._open(expected_checksum, mapped=mapped)
        except CorruptFile:
            # A copy may be of another file of that name, from before the folder was begun anew.
            if not (mapped and store.drop_copy(path)):
                raise
            index = self._open(expected_checksum, mapped=mapped)
        self._check = BatchCheck(self.schema)
        self.kind, self.compression, self.meta = index.kind, index.compression, index.meta
        self.batches = index.batches
        self.rows = sum(batch.rows for batch in index.batches)

    def _open(self, expected_checksum: str | None, *, mapped: bool) -> Index:
        self._map = self._map_file() if mapped else None
        # A mapping needs no file descriptor, and many state files are open at once.
        mapping = None if self._map is None else memoryview(self._map).cast("B")
        self._reader = self._store.open_reader(self._path) if mapping is None else MemoryReader(self._path, mapping)
        try:
            index = self._read_index(expected_checksum)
            self.schema = self._read_schema(index.schema)
        except BaseException:
            self._reader.close()
            raise
        return index

    def require_groups(self, max_parallelism: int) -> None:
        """Raises: `CorruptFile` for rows whose key group is not known, or is none."""
        for number, info in enumerate(self.batches):
            if info.rows and (not info.groups or info.groups[-1] >= max_parallelism):
                self.corrupt(f"batch {number} has rows outside of key groups 0 to {max_parallelism - 1}")

    def read_batch(self, number: int) -> pa.RecordBatch:
        """One batch, verified. Raises: `CorruptFile`."""
        if self._map is not None:
            return self._read_mapped(self._map, number)
        if self.compression is None:
            return self._read_fresh(number)
        return self._read_through_buffer(number)

    def verify(self) -> None:
        """Reads every batch without decoding it, and compares its checksum. Raises: `CorruptFile`."""
        assert self._buffer is not None
        for number, info in enumerate(self.batches):
            with self._buffer.use(info.length) as view:
                self._reader.read_into(info.offset, view)
                self._verify(f"batch {number}", view, info.checksum)

    def close(self) -> None:
        """Batches that were read stay valid."""
        self._reader.close()
        self._map = None
        if self._own_buffer is not None:
            self._own_buffer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read_mapped(self, mapped: pa.Buffer, number: int) -> pa.RecordBatch:
        info = self.batches[number]
        message = mapped.slice(info.offset, info.length)
        known = self._verified_key(number) in _verified
        if not known:
            if checksum_of(message) != info.checksum and self._store.drop_copy(self._path):
                # The copy on this machine is damaged; the file itself may be whole.
                self._map = self._map_file()
                if self._map is None:
                    self._reader = self._store.open_reader(self._path)
                    return self.read_batch(number)
                message = self._map.slice(info.offset, info.length)
            self._verify(f"batch {number}", message, info.checksum)
        batch = self._decode(number, message, checked=known)
        if not known:
            if len(_verified) >= _VERIFIED_MAX:
                _verified.clear()
            _verified.add(self._verified_key(number))
        return batch

    def _verified_key(self, number: int) -> tuple[str, str, str, FileStamp, int]:
        return self._store.url, self._path, self.checksum, self._stamp, number

    def _read_fresh(self, number: int) -> pa.RecordBatch:
        """Reads into new memory, because uncompressed arrays point into the bytes that were read."""
        info = self.batches[number]
        message = pa.allocate_buffer(info.length)
        self._reader.read_into(info.offset, memoryview(message))
        self._verify(f"batch {number}", message, info.checksum)
        return self._decode(number, self._store.put_down(message) if self._mapped else message)

    def _read_through_buffer(self, number: int) -> pa.RecordBatch:
        """The schema goes before the batch: only a stream can be decompressed without threads."""
        info = self.batches[number]
        assert self._buffer is not None
        begin = len(self._schema_message)
        with self._buffer.use(begin + info.length) as view:
            view[:begin] = self._schema_message
            self._reader.read_into(info.offset, view[begin:])
            self._verify(f"batch {number}", view[begin:], info.checksum)
            self._refuse(number, fault_in_message(view[begin:], info.rows))
            stream = pa.py_buffer(view)
            batch = self._decode(number, stream, with_schema=True)
            # The format lets a writer leave a buffer uncompressed when that is smaller; such arrays would point into
            # the reusable bytes, so they get bytes of their own.
            if _points_into(batch, stream):
                batch = self._decode(number, pa.py_buffer(bytes(view)), with_schema=True)
        return batch

    def _decode(
        self, number: int, message: pa.Buffer, *, with_schema: bool = False, checked: bool = False
    ) -> pa.RecordBatch:
        """`checked`: the same bytes were decoded before. The caller has checked the sizes in a stream."""
        if not with_schema and not checked:
            self._refuse(number, fault_in_message(message, self.batches[number].rows))
        try:
            if with_schema:
                batch = pa.ipc.open_stream(message, options=_READ_OPTIONS).read_next_batch()
            else:
                batch = pa.ipc.read_record_batch(message, self.schema)
        except (pa.ArrowException, OSError, StopIteration, ValueError) as error:
            self.corrupt(f"batch {number} cannot be decoded: {error}")
        if batch.num_rows != self.batches[number].rows:
            self.corrupt(f"batch {number} has {batch.num_rows} rows, its index says {self.batches[number].rows}")
        if not checked:
            self._refuse(number, self._check.fault(batch))
        return batch

    def _refuse(self, number: int, fault: str | None) -> None:
        if fault is not None:
            self.corrupt(f"batch {number} is no batch that Penstock has written: {fault}")

    def _read_index(self, expected_checksum: str | None) -> Index:
        size = self._reader.size
        tail = self._read(max(0, size - _TAIL_GUESS_BYTES), min(size, _TAIL_GUESS_BYTES))
        if len(tail) < TRAILER.size:
            self.corrupt(f"it has {size} bytes only")
        length, digest, magic = TRAILER.unpack(tail[-TRAILER.size :])
        if magic != MAGIC:
            self.corrupt(f"it ends with {magic!r}, not with {MAGIC!r}")
        index_end = size - TRAILER.size
        stream_end = index_end - length
        if stream_end < len(_END_OF_STREAM):
            self.corrupt(f"an index of {length} bytes does not fit into its {size} bytes")
        wanted_tail = length + len(_END_OF_STREAM)
        if wanted_tail > len(tail) - TRAILER.size:
            tail = self._read(index_end - wanted_tail, wanted_tail) + tail[-TRAILER.size :]
        encoded = tail[-TRAILER.size - length : -TRAILER.size]
        self._verify("the index", encoded, f"{digest:016x}")
        self.checksum = checksum_of(encoded)
        if expected_checksum is not None and self.checksum != expected_checksum:
            self.corrupt(
                f"it has checksum {self.checksum}, the checkpoint names {expected_checksum}: it is another file",
                wanted=expected_checksum,
                got=self.checksum,
            )
        if tail[-TRAILER.size - wanted_tail : -TRAILER.size - length] != _END_OF_STREAM:
            self.corrupt("the end-of-stream marker before the index is damaged")
        index = self._decode_index(encoded)
        self._check_coverage(index, stream_end - len(_END_OF_STREAM))
        return index

    def _decode_index(self, encoded: bytes) -> Index:
        try:
            version = msgspec.json.decode(encoded, type=IndexVersion).version
            if version > ARROW_FILE_VERSION:
                raise FormatTooNew(
                    f"{self._path} has version {version}, this Penstock reads up to {ARROW_FILE_VERSION}",
                    cause="the checkpoint was written by a newer Penstock",
                    next_step="install that version or a newer one",
                    path=self._path,
                )
            return msgspec.json.decode(encoded, type=Index)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            self.corrupt(f"its index cannot be decoded: {error}")

    def _check_coverage(self, index: Index, end: int) -> None:
        """Schema and batches lie end to end: no byte is outside of every checksum."""
        position = index.schema.length
        for number, info in enumerate(index.batches):
            if info.offset != position:
                self.corrupt(f"batch {number} begins at byte {info.offset}, not at {position}")
            if not info.adds_up:
                self.corrupt(f"the key groups of batch {number} do not add up to its {info.rows} rows")
            position += info.length
        if position != end:
            self.corrupt(f"its batches end at byte {position}, not at {end}")

    def _read_schema(self, info: SchemaInfo) -> pa.Schema:
        self._schema_message = self._read(0, info.length)
        self._verify("the schema", self._schema_message, info.checksum)
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(self._schema_message))
        except (pa.ArrowException, OSError, ValueError) as error:
            self.corrupt(f"its schema cannot be decoded: {error}")
        if has_dictionary(schema):
            self.corrupt("its schema has a dictionary")
        return schema

    def _read(self, offset: int, length: int) -> bytes:
        target = bytearray(length)
        self._reader.read_into(offset, memoryview(target))
        return bytes(target)

    def _map_file(self) -> pa.Buffer | None:
        """None: the file cannot be mapped, and is read where it is."""
        for _ in range(_MAP_TRIES):
            local = self._store.local_path(self._path)
            if local is None:
                return None
            try:
                self._stamp, mapping = _mapped(local)
                return mapping
            except FileNotFoundError:
                continue  # a copy may have gone since we asked for it: room was needed
            except OSError as error:
                raise storage_failed(local, error) from error
        return None

    def _verify(self, what: str, data: Any, wanted: str) -> None:
        got = checksum_of(data)
        if got != wanted:
            self.corrupt(f"{what} has checksum {got}, {wanted} was written", part=what, wanted=wanted, got=got)

    def corrupt(self, seen: str, **fields: object) -> NoReturn:
        """Raises: `CorruptFile`."""
        raise CorruptFile(
            f"{self._path}: {seen}",
            cause="bytes were lost or changed after the file had been written",
            next_step="restore the file from a copy, or restore an older checkpoint (restore=N)",
            path=self._path,
            **fields,
        )


def _points_into(batch: pa.RecordBatch, message: pa.Buffer) -> bool:
    begin, end = message.address, message.address + message.size
    buffers = (buffer for column in batch.columns for buffer in column.buffers() if buffer is not None)
    return any(begin <= buffer.address < end for buffer in buffers)


def _mapped(local: str) -> tuple[FileStamp, pa.Buffer]:
    """A regular file as memory, and what tells it from another one of that name."""
    descriptor = os.open(local, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", local)
        # What was looked at is what is mapped, where the system can name an open file.
        opened = f"/proc/self/fd/{descriptor}"
        with pa.memory_map(opened if os.path.exists(opened) else local) as file:  # noqa: PTH110 - a link of the kernel's
            return FileStamp(info.st_mtime_ns, info.st_ino, info.st_size), file.read_buffer()
    finally:
        os.close(descriptor)


def has_dictionary(schema: pa.Schema) -> bool:
    """Whether a type has a dictionary. A dictionary is a message of its own, so a batch could not be read alone."""
    pending = [field.type for field in schema]
    while pending:
        kind = pending.pop()
        if pa.types.is_dictionary(kind):
            return True
        pending.extend(kind.field(number).type for number in range(kind.num_fields))
    return False
