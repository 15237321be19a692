"""Live rows of several sources in one stream, and rows that are dealt out (B8, B10)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from penstock.channel.hashing import hash_columns
from penstock.channel.lanes import BLOCK_ROWS, Dealer, spread
from penstock.channel.live import GATHERED_BYTES, LiveRows, MixedInputs, gathered, hashed
from penstock.channel.segment import HASH_COLUMN, edge_schema
from penstock.protocol.keygroups import groups_of, range_of

LEFT = pa.schema([("n", pa.int64())])
RIGHT = pa.schema([("n", pa.int64()), ("word", pa.string())])


def mixed(rows: list[tuple[int, int]]) -> pa.RecordBatch:
    """As Spark delivers them: (edge number, n)."""
    ports = pa.array([port for port, _ in rows], pa.int32())
    lefts = pa.array([{"n": n} if port == 0 else None for port, n in rows], pa.struct(LEFT))
    rights = pa.array([{"n": n, "word": str(n)} if port == 1 else None for port, n in rows], pa.struct(RIGHT))
    hashes = pa.array([n for _, n in rows], pa.int64())
    return pa.RecordBatch.from_arrays([ports, lefts, rights, hashes], ["port", "p0", "p1", HASH_COLUMN])


class Writer:
    """Remembers what was written."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.numbers += batch.column("n").to_pylist()

    def close(self) -> list:
        return []


def opened(batches: list[pa.RecordBatch], bytes_max: int) -> tuple[list[LiveRows], list[Writer]]:
    inputs = MixedInputs(iter(batches), ["left", "right"], bytes_max)
    writers = [Writer(), Writer()]
    rows = []
    for edge, schema, writer in zip(("left", "right"), (LEFT, RIGHT), writers, strict=True):
        live = LiveRows(inputs.batches_of(edge), edge_schema(schema), lambda _, writer=writer: writer)
        inputs.on_overflow(edge, live.put_away)
        rows.append(live)
    return rows, writers


def numbers(batch: pa.RecordBatch | None) -> list[int]:
    return [] if batch is None else batch.column("n").to_pylist()


def test_each_input_gets_its_own_rows_in_order() -> None:
    rows = [(n % 3 == 0, n) for n in range(30)]
    (left, right), writers = opened(
        [mixed([(int(p), n) for p, n in rows[k : k + 7]]) for k in range(0, 30, 7)], 1 << 20
    )
    seen: dict[int, list[int]] = {0: [], 1: []}
    for number, live in enumerate((right, left)):
        while (batch := live.peek()) is not None:
            seen[number] += numbers(batch)
            assert batch.schema.equals(edge_schema(RIGHT if live is right else LEFT))
            live.advance(batch.num_rows)
    assert seen[0] == [n for p, n in rows if p]
    assert seen[1] == [n for p, n in rows if not p]
    assert left.spill() is None
    assert right.spill() is None
    assert not writers[0].numbers
    assert left.accepted + right.accepted == 30


def test_an_input_that_is_left_behind_goes_to_a_segment_from_there_on() -> None:
    """A8: rows in hand and rows that waited come before the rest; memory is bounded."""
    batches = [mixed([(0, n), (1, 100 + n)]) for n in range(50)]
    (left, right), (_, writer) = opened(batches, bytes_max=200)
    batch = right.peek()
    assert numbers(batch) == [100]
    while (batch := left.peek()) is not None:
        left.advance(batch.num_rows)
    assert right.peek() is None, "nothing more in this epoch"
    assert right.spill() is writer
    assert writer.numbers == [100 + n for n in range(50)]
    assert (right.accepted, right.consumed, left.consumed) == (50, 0, 50)


def test_rows_consumed_before_the_overflow_are_not_written() -> None:
    batches = [mixed([(1, n) for n in range(4)]), *[mixed([(0, n), (1, 10 + n)]) for n in range(40)]]
    (left, right), (_, writer) = opened(batches, bytes_max=200)
    right.peek()
    right.advance(3)
    while (batch := left.peek()) is not None:
        left.advance(batch.num_rows)
    right.spill()
    assert writer.numbers == [3, *range(10, 50)]
    assert right.consumed == 3


@pytest.mark.parametrize("column", [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.timestamp("ms")])
def test_the_largest_event_time_counts_rows_that_nobody_processed(column: pa.DataType) -> None:
    schema = pa.schema([("ts", column)])
    unit = 1000 if "ms" in str(column) else 1
    times = pa.array([3000 // unit, None, 9000 // unit, 5000 // unit], pa.int64()).cast(column)
    batch = pa.RecordBatch.from_arrays([times, pa.array([0] * 4, pa.int64())], ["ts", HASH_COLUMN])
    live = LiveRows(iter([batch]), edge_schema(schema), lambda _: Silent(), event_time="ts")
    live.spill()
    assert live.max_event_time == 9000


class Silent(Writer):
    """Takes rows of any columns."""

    def write(self, batch: pa.RecordBatch) -> None:
        self.numbers.append(batch.num_rows)


@pytest.mark.parametrize("parallelism", [1, 2, 3, 7, 16])
def test_dealt_rows_are_shared_evenly_by_any_number_of_subtasks(parallelism: int) -> None:
    """B8."""
    dealer = Dealer(128)
    lanes = np.concatenate([dealer.deal(rows) for rows in (1000, 37, 3059)])
    ranges = [range_of(subtask, parallelism, 128) for subtask in range(parallelism)]
    groups = groups_of(lanes, 128)
    shares = [int(((groups >= part.lo) & (groups < part.hi)).sum()) for part in ranges]
    assert sum(shares) == 4096
    assert max(shares) - min(shares) <= 0.2 * 4096 / parallelism + BLOCK_ROWS


def test_lanes_are_spread_from_the_beginning() -> None:
    assert Counter(lane // 32 for lane in spread(128)[:4]) == {0: 1, 1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize(
    ("sizes", "gathered_sizes"),
    [
        ([], []),
        ([5], [5]),
        ([1 << 16] * 6 + [3], [1 << 18, (1 << 17) + 3]),
        ([3, 0, 1 << 19, 2], [3, 1 << 19, 2]),
    ],
)
def test_gathered_rows_keep_their_order_and_are_not_too_many(sizes: list[int], gathered_sizes: list[int]) -> None:
    """A8, D3: a batch that is too large by itself passes."""
    starts = np.cumsum([0, *sizes])
    batches = [
        pa.record_batch({"n": np.arange(start, start + size)}) for start, size in zip(starts, sizes, strict=False)
    ]
    found = list(gathered(iter(batches)))
    assert [batch.num_rows for batch in found] == gathered_sizes
    assert [n for batch in found for n in batch["n"].to_pylist()] == list(range(sum(sizes)))


def test_wide_rows_are_gathered_up_to_a_number_of_bytes() -> None:
    """D3."""
    batches = [pa.record_batch({"pad": [b"x" * (1 << 20)]}) for _ in range(20)]
    found = list(gathered(iter(batches)))
    assert sum(batch.num_rows for batch in found) == 20
    assert max(batch.nbytes for batch in found) <= GATHERED_BYTES
    assert len(found) < 5


def test_rows_that_come_without_a_hash_get_the_one_that_spark_would_send() -> None:
    """The hashes are Spark's own `xxhash64` of these keys."""
    batch = pa.record_batch({"n": pa.array([0, 1, None], pa.int64()), "day": pa.array([0, 1, 2], pa.date32())})
    (with_hash,) = hashed(iter([batch]), ["n"])
    assert with_hash.schema.names == ["n", "day", HASH_COLUMN]
    assert with_hash.column(HASH_COLUMN).to_pylist() == [-5252525462095825812, -7001672635703045582, 42]
    (by_two,) = hashed(iter([batch]), ["day", "n"])
    assert by_two.column(HASH_COLUMN).to_pylist() == hash_columns([batch["day"], batch["n"]]).tolist()


def test_times_are_taken_whatever_zone_they_are_said_in() -> None:
    """The first micro-batch has the time zone of the user's session."""
    utc, local = pa.timestamp("us", "UTC"), pa.timestamp("us", "America/New_York")
    schema = edge_schema(pa.schema([("at", utc), ("pair", pa.struct([("at", utc)]))]))
    batch = pa.record_batch(
        {
            "at": pa.array([1, None], pa.int64()).cast(local),
            "pair": pa.array([{"at": 5}, None], pa.struct([("at", pa.int64())])).cast(pa.struct([("at", local)])),
            HASH_COLUMN: pa.array([0, 0], pa.int64()),
        }
    )
    taken = LiveRows(iter([batch]), schema, lambda _: Writer()).peek()
    assert taken is not None
    assert taken.schema.types == schema.types
    assert taken.column(0).cast(pa.int64()).to_pylist() == [1, None]
    assert taken.column(1).cast(pa.struct([("at", pa.int64())])).to_pylist() == [{"at": 5}, None]
