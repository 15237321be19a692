"""Readers of in-flight records: of one span, or of many in a row with read-ahead.

Both only move cursors. `close` drops rows that were read but not consumed; they are still in their segments.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from types import TracebackType
from typing import NamedTuple, Self

import pyarrow as pa

from penstock.inflight.prefetch import ReadAhead
from penstock.inflight.scan import Chunk, Opened, ScanPosition, SpanCursor, SpanScan
from penstock.protocol.ids import CheckpointId
from penstock.protocol.reads import ReadSpan, SpanReport
from penstock.store.base import Store
from penstock.store.readbuffer import ReadBuffer

PREFETCH_BYTES = 16 << 20

# The consumer itself reads an input of up to this many batches: a thread would cost more than it gains.
_BATCHES_WITHOUT_THREAD = 2


class Mark(NamedTuple):
    """A position in a row of spans: how many were opened, and the place in the last one."""

    spans: int
    last: ScanPosition | None


class SpanReader:
    """Reads one span in the caller's thread; nothing is opened before the first `peek`."""

    def __init__(self, store: Store, read: ReadSpan, max_parallelism: int) -> None:
        self._buffer = ReadBuffer()
        self._scan = SpanScan(store, read, max_parallelism, self._buffer)
        self._cursor: SpanCursor | None = None

    def peek(self) -> pa.RecordBatch | None:
        """The rows in hand that were not consumed yet, hidden column included; None at the end of the span."""
        if self._cursor is None:
            self._cursor = SpanCursor(self._scan.open())
        if self._cursor.peek() is None and (chunk := self._scan.next()) is not None:
            self._cursor.give(chunk)
        return self._cursor.peek()

    def advance(self, rows: int) -> None:
        """Consumes the first `rows` rows of what `peek` returned."""
        assert self._cursor is not None, "nothing in hand"
        self._cursor.advance(rows)

    def report(self) -> SpanReport | None:
        """How far the consumer got; None when nothing was opened."""
        return None if self._cursor is None else self._cursor.report()

    def close(self) -> None:
        self._scan.close()
        self._buffer.close()
        if self._cursor is not None:
            self._cursor.drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PrefetchingReader:
    """Reads spans one after the other, in the order given."""

    def __init__(
        self,
        store: Store,
        spans: Sequence[ReadSpan],
        max_parallelism: int,
        prefetch_bytes: int = PREFETCH_BYTES,
        schema: pa.Schema | None = None,
    ) -> None:
        """`schema`: the edge's, hidden column included; files with other columns are refused."""
        self._store, self._spans, self._max_parallelism = store, tuple(spans), max_parallelism
        self._schema = schema
        self._buffer = ReadBuffer()
        self._cursors: list[SpanCursor] = []
        self._chunks_taken = 0
        # Without a budget there is nothing to read ahead.
        self._start_thread_after = _BATCHES_WITHOUT_THREAD if prefetch_bytes > 0 else None
        self._read_all = (
            False  # written by the thread that runs `_read_spans`, read by the consumer before that thread starts
        )
        self._ahead = ReadAhead(self._read_spans(), _bytes_held, prefetch_bytes)

    def peek(self) -> pa.RecordBatch | None:
        """The rows in hand that were not consumed yet, hidden column included; None at the end of all spans.

        Raises: what reading raised, also when it happened in the thread; every later call raises it again.
        """
        while self._in_hand() is None:
            if self._chunks_taken == self._start_thread_after and not self._read_all:
                self._ahead.start()
            match self._ahead.get():
                case None:
                    return None
                case Opened() as opened:
                    self._cursors.append(SpanCursor(opened))
                case Chunk() as chunk:
                    self._cursors[-1].give(chunk)
                    self._chunks_taken += 1
        return self._in_hand()

    def advance(self, rows: int) -> None:
        """Consumes the first `rows` rows of what `peek` returned."""
        assert self._cursors, "nothing in hand"
        self._cursors[-1].advance(rows)

    @property
    def arrival(self) -> CheckpointId:
        """The arrival of the rows that `peek` returned."""
        assert self._cursors, "nothing in hand"
        return self._cursors[-1].arrival

    @property
    def spans_done(self) -> int:
        """How many spans, from the first on, the consumer has used up; exact after `peek`."""
        if not self._cursors:
            return 0
        return len(self._cursors) - 1 + self._cursors[-1].used_up

    def report(self) -> list[SpanReport]:
        """How far the consumer got, for each span it reached; spans that were only read ahead are not among them."""
        return [cursor.report() for cursor in self._cursors]

    def mark(self) -> Mark:
        """Where the consumer is, to come back to."""
        return Mark(len(self._cursors), self._cursors[-1].place if self._cursors else None)

    def rewind(self, mark: Mark) -> None:
        """Back to an earlier mark: what was consumed since is in flight again. Reading ends with that."""
        for cursor in self._cursors[mark.spans :]:
            cursor.rewind(cursor.start)
        if mark.last is not None:
            self._cursors[mark.spans - 1].rewind(mark.last)

    def close(self) -> None:
        """Ends the thread and frees all memory; `report` still answers."""
        self._ahead.close()
        self._buffer.close()
        for cursor in self._cursors:
            cursor.drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _in_hand(self) -> pa.RecordBatch | None:
        return self._cursors[-1].peek() if self._cursors else None

    def _read_spans(self) -> Generator[Opened | Chunk, None, None]:
        for number, span in enumerate(self._spans):
            scan = SpanScan(self._store, span, self._max_parallelism, self._buffer, self._schema)
            try:
                yield scan.open()
                while (chunk := scan.next()) is not None:
                    self._read_all = scan.at_end and number == len(self._spans) - 1
                    yield chunk
            finally:
                scan.close()


def _bytes_held(item: Opened | Chunk) -> int:
    """The memory an item keeps alive; a slice keeps all of its batch."""
    return item.batch.get_total_buffer_size() if isinstance(item, Chunk) else 0
