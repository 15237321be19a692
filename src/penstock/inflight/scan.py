"""Reading a span of a segment: the rows of a range of key groups, from a cursor on.

`SpanScan` reads: batches without such rows are skipped by the file's index and never touched. `SpanCursor` consumes:
for every row in hand it knows the row number in the segment, so a consumer may stop after any row, exactly there.
The two share nothing but what passes between them, so each may live in a thread of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.inflight.fitting import Fitting, fitting
from penstock.inflight.segment import HASH_COLUMN, hashes_of
from penstock.protocol.ids import CheckpointId
from penstock.protocol.keygroups import groups_of
from penstock.protocol.reads import ReadSpan, SpanReport
from penstock.store.arrowfile import ArrowFile
from penstock.store.base import Store
from penstock.store.readbuffer import ReadBuffer


class Opened(NamedTuple):
    """The numbers known after opening a span: rows to come, and rows in the whole segment."""

    span: ReadSpan
    rows: int
    segment_rows: int


class Chunk(NamedTuple):
    """Rows of a span; `numbers` are their row numbers in the segment, None when they follow each other."""

    batch: pa.RecordBatch
    first: int
    numbers: npt.NDArray[np.int64] | None

    def cursor_after(self, rows: int) -> int:
        """The cursor of a consumer that took the first `rows` rows."""
        assert 0 < rows <= self.batch.num_rows
        return self.first + rows if self.numbers is None else int(self.numbers[rows - 1]) + 1


class ScanPosition(NamedTuple):
    """A position of a consumer in a span: rows consumed, and the cursor behind them."""

    consumed: int
    cursor: int


class SpanScan:
    """The producing side: reads and filters, one batch at a time."""

    def __init__(
        self, store: Store, span: ReadSpan, max_parallelism: int, buffer: ReadBuffer, schema: pa.Schema | None = None
    ) -> None:
        """`schema`: the edge's, hidden column included; rows of an older one are cast, a file that does not fit is
        refused."""
        self._schema = schema
        self._fitting: Fitting | None = None
        assert 0 <= span.lo < span.hi <= max_parallelism
        self._store, self._span, self._max_parallelism, self._buffer = store, span, max_parallelism, buffer
        self._file: ArrowFile | None = None
        self._todo: list[tuple[int, int, int]] = []  # batch, its first row number, its rows in the range; last first
        self._ready: Chunk | None = None
        self._rows_to_come = 0

    def open(self) -> Opened:
        """Finds the batches to read, and counts their rows exactly.

        Raises: `CorruptFile`, `MissingFile`, `StorageFailed`.
        """
        span = self._span
        self._file = ArrowFile(self._store, span.path, span.checksum, buffer=self._buffer)
        self._require_fit(self._file)
        first = rows = 0
        for number, info in enumerate(self._file.batches):
            in_range = info.rows_in(span.lo, span.hi) if first + info.rows > span.cursor else 0
            if in_range:
                self._todo.append((number, first, in_range))
                rows += in_range
            first += info.rows
        self._todo.reverse()
        self._rows_to_come = rows - self._rows_before_cursor()
        return Opened(span, self._rows_to_come, self._file.rows)

    def _require_fit(self, file: ArrowFile) -> None:
        """Checks a file that may come from elsewhere or be forged. Raises: `CorruptFile`."""
        span = self._span
        if (found := file.meta.get("max_parallelism")) != self._max_parallelism:
            file.corrupt(f"it has max_parallelism {found}, the checkpoint has {self._max_parallelism}")
        if not 0 <= span.cursor <= file.rows:
            file.corrupt(f"it has {file.rows} rows, the checkpoint has consumed {span.cursor}")
        if not file.schema.names or file.schema.names[-1] != HASH_COLUMN or file.schema.types[-1] != pa.int64():
            file.corrupt(f"its last column is not {HASH_COLUMN}")
        wanted = self._schema
        if wanted is not None and (file.schema.names, file.schema.types) != (wanted.names, wanted.types):
            self._fitting = fitting(file.schema, wanted)
            if self._fitting is None:
                file.corrupt(f"its columns are {', '.join(file.schema.names)}, with types that the edge cannot hold")
        file.require_groups(self._max_parallelism)

    def next(self) -> Chunk | None:
        """The next rows, or None at the end."""
        while self._ready is None and self._todo:
            self._ready = self._load_next()
        chunk, self._ready = self._ready, None
        if chunk is not None:
            self._rows_to_come -= chunk.batch.num_rows
        if self._file is not None and (self._rows_to_come < 0 or (chunk is None and self._rows_to_come)):
            self._file.corrupt(f"it has {'more' if self._rows_to_come < 0 else 'fewer'} rows than its index says")
        return chunk

    @property
    def at_end(self) -> bool:
        return self._rows_to_come == 0

    def close(self) -> None:
        self._todo, self._ready = [], None
        if self._file is not None:
            self._file.close()

    def _rows_before_cursor(self) -> int:
        """Rows of the range in the batch that holds the cursor, but before it; only reading that batch can tell."""
        assert self._file is not None
        if not self._todo:
            return 0
        number, first, in_range = self._todo[-1]
        before = self._span.cursor - first
        if before <= 0:
            return 0
        if in_range == self._file.batches[number].rows:
            return before
        self._ready = self._load_next()
        return in_range - (self._ready.batch.num_rows if self._ready else 0)

    def _load_next(self) -> Chunk | None:
        assert self._file is not None
        number, first, in_range = self._todo[-1]
        batch = self._file.read_batch(number)
        if batch.column(batch.num_columns - 1).null_count:
            self._file.corrupt(f"batch {number} has rows without {HASH_COLUMN}")
        if self._fitting is not None:
            batch = self._fitting.fitted(batch)
        self._todo.pop()
        skip = max(0, self._span.cursor - first)
        if in_range == batch.num_rows:
            return Chunk(batch.slice(skip) if skip else batch, first + skip, None)
        groups = groups_of(hashes_of(batch)[skip:], self._max_parallelism)
        kept = np.flatnonzero((groups >= self._span.lo) & (groups < self._span.hi)) + skip
        return _pick(batch, kept, first) if len(kept) else None


def _pick(batch: pa.RecordBatch, kept: npt.NDArray[np.int64], first: int) -> Chunk:
    """The rows numbered `kept`: a slice when they are together and most of the batch, else a copy.

    A small slice would keep the whole batch in memory.
    """
    begin, rows = int(kept[0]), len(kept)
    if int(kept[-1]) - begin + 1 == rows and 2 * rows >= batch.num_rows:
        return Chunk(batch.slice(begin, rows), first + begin, None)
    return Chunk(batch.take(pa.array(kept)), first + begin, kept + first)


class SpanCursor:
    """The consuming side: the rows in hand, and how far the consumer got."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._chunk: Chunk | None = None
        self._taken = 0
        self._rest: pa.RecordBatch | None = None
        self._consumed = 0
        self._cursor = opened.span.cursor

    def give(self, chunk: Chunk) -> None:
        assert self._rest is None, "rows in hand were not consumed yet"
        self._chunk, self._taken, self._rest = chunk, 0, chunk.batch

    def peek(self) -> pa.RecordBatch | None:
        return self._rest

    def advance(self, rows: int) -> None:
        assert self._chunk is not None, "nothing in hand"
        assert self._rest is not None
        assert 0 <= rows <= self._rest.num_rows, f"{rows} of {self._rest.num_rows} rows"
        if rows == 0:
            return
        self._taken += rows
        self._consumed += rows
        self._cursor = self._chunk.cursor_after(self._taken)
        if self._taken < self._chunk.batch.num_rows:
            self._rest = self._rest.slice(rows)
        else:
            self.drop()

    @property
    def arrival(self) -> CheckpointId:
        return self._opened.span.arrival

    @property
    def used_up(self) -> bool:
        return self._consumed == self._opened.rows

    @property
    def place(self) -> ScanPosition:
        """Where the consumer is, to come back to."""
        return ScanPosition(self._consumed, self._cursor)

    @property
    def start(self) -> ScanPosition:
        return ScanPosition(0, self._opened.span.cursor)

    def rewind(self, place: ScanPosition) -> None:
        """Back to an earlier place; reading ends with that."""
        assert place.consumed <= self._consumed, "a cursor is rewound, never moved ahead"
        self._consumed, self._cursor = place
        self.drop()

    def drop(self) -> None:
        """Forgets the rows in hand; they are still in the segment."""
        self._chunk = self._rest = None

    def report(self) -> SpanReport:
        span, rows, segment_rows = self._opened
        return SpanReport(
            path=span.path,
            lo=span.lo,
            hi=span.hi,
            start_cursor=span.cursor,
            cursor=segment_rows if self._consumed == rows else self._cursor,
            rows_at_open=rows,
            consumed=self._consumed,
        )
