"""Live rows of several sources in one stream, and rows that are dealt out (B8, B10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import ConservationError
from penstock.hashing import hash_columns
from penstock.inflight.eventtimes import EventTimes
from penstock.inflight.lanes import BLOCK_ROWS, Dealer, spread
from penstock.inflight.live import GATHERED_BYTES, LiveInputs, LiveRows, hashed
from penstock.inflight.segment import HASH_COLUMN, edge_schema
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


def opened(
    batches: list[pa.RecordBatch], bytes_max: int, *, in_turn: bool = False, gathers: bool = False
) -> tuple[LiveInputs, list[LiveRows], list[Writer]]:
    inputs = LiveInputs.mixed(iter(batches), ["left", "right"], bytes_max)
    writers = [Writer(), Writer()]
    rows = []
    for edge, schema, writer in zip(("left", "right"), (LEFT, RIGHT), writers, strict=True):
        live = LiveRows(edge_schema(schema), lambda _, writer=writer: writer, gathers=gathers)
        inputs.attach(edge, live)
        live.in_turn = in_turn
        rows.append(live)
    return inputs, rows, writers


def single(batches: list[pa.RecordBatch], schema: pa.Schema, **options: Any) -> tuple[LiveInputs, LiveRows]:
    inputs, rows = LiveInputs.single(iter(batches), "edge"), LiveRows(schema, lambda _: Silent(), **options)
    inputs.attach("edge", rows)
    return inputs, rows


def taken(live: LiveRows) -> list[int]:
    """Everything that can be taken now."""
    found: list[int] = []
    while (batch := live.peek()) is not None:
        found += numbers(batch)
        live.advance(batch.num_rows)
    return found


def end(inputs: LiveInputs, rows: list[LiveRows]) -> None:
    inputs.drain()
    for live in rows:
        live.spill()


def numbers(batch: pa.RecordBatch | None) -> list[int]:
    return [] if batch is None else batch.column("n").to_pylist()


def test_each_input_gets_its_own_rows_in_order() -> None:
    rows = [(int(n % 3 == 0), n) for n in range(30)]
    inputs, (left, right), writers = opened([mixed(rows[k : k + 7]) for k in range(0, 30, 7)], 1 << 20)
    for live, port, schema in ((right, 1, RIGHT), (left, 0, LEFT)):
        batch = live.peek()
        assert batch is not None
        assert batch.schema.equals(edge_schema(schema))
        assert taken(live) == [n for p, n in rows if p == port]
    end(inputs, [left, right])
    assert not writers[0].numbers
    assert not writers[1].numbers
    assert left.accepted + right.accepted == 30


def test_an_input_that_is_left_behind_goes_to_a_segment_from_there_on() -> None:
    """A8: rows in hand and rows that waited come before the rest; memory is bounded."""
    batches = [mixed([(0, n), (1, 100 + n)]) for n in range(50)]
    inputs, (left, right), (_, writer) = opened(batches, bytes_max=200)
    assert numbers(right.peek()) == [100]
    assert taken(left) == list(range(50))
    assert right.peek() is None, "nothing more in this epoch"
    assert right.left_behind
    end(inputs, [left, right])
    assert writer.numbers == [100 + n for n in range(50)]
    assert (right.accepted, right.consumed, left.consumed) == (50, 0, 50)


def test_rows_consumed_before_the_overflow_are_not_written() -> None:
    batches = [mixed([(1, n) for n in range(4)]), *[mixed([(0, n), (1, 10 + n)]) for n in range(40)]]
    inputs, (left, right), (_, writer) = opened(batches, bytes_max=200)
    right.peek()
    right.advance(3)
    assert len(taken(left)) == 40
    end(inputs, [left, right])
    assert writer.numbers == [3, *range(10, 50)]
    assert right.consumed == 3


def test_an_input_in_turn_is_taken_first_instead_of_being_left_behind() -> None:
    """Blocks of one edge, each far larger than what may wait: where nothing is cut, nothing is written (A3)."""
    blocks = [(port, range(1000 * k, 1000 * (k + 1))) for k, port in enumerate([0, 1, 0, 1])]
    batches = [mixed([(port, n) for n in block[k : k + 10]]) for port, block in blocks for k in range(0, 1000, 10)]
    inputs, (left, right), writers = opened(batches, bytes_max=500, in_turn=True)
    found: list[list[int]] = [[], []]
    most = 0
    while not inputs.ended:
        for port, live in enumerate((left, right)):
            batch = live.peek()
            if batch is not None:
                found[port] += numbers(batch)
                live.advance(batch.num_rows)
            most = max(most, live.bytes_waiting)
    found[0] += taken(left)
    found[1] += taken(right)
    end(inputs, [left, right])
    assert found == [[n for port, block in blocks if port == mine for n in block] for mine in (0, 1)]
    assert writers[0].numbers == writers[1].numbers == []
    assert most <= 500 + max(batch.nbytes for batch in batches)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("in_turn", [False, True])
def test_the_rest_of_the_stream_is_written_though_all_inputs_have_too_much(first: int, in_turn: bool) -> None:
    """A record larger than every limit: nobody may stop reading while rows are left."""
    batches = [mixed([((first + n) % 2, n)]) for n in range(40)]
    inputs, rows, writers = opened(batches, bytes_max=0, in_turn=in_turn)
    batch = rows[0].peek()
    end(inputs, rows)
    assert [writer.numbers for writer in writers] == [[n for n in range(40) if (first + n) % 2 == p] for p in (0, 1)]
    assert [live.accepted for live in rows] == [20, 20]
    assert (batch is None) == (first == 1 and in_turn), "rows of the other input have to be taken first"


def test_gathered_rows_stay_in_front_of_what_is_left_behind_later() -> None:
    batches = [mixed([(0, n), (1, n)]) for n in range(100)]
    inputs, (left, right), (_, writer) = opened(batches, bytes_max=400, gathers=True)
    right.in_turn = True
    first = left.peek()
    assert 1 < len(numbers(first)) < 100, "as many as came until the other one had enough"
    right.in_turn = False
    assert numbers(right.peek())[:5] == [0, 1, 2, 3, 4]
    end(inputs, [left, right])
    assert writer.numbers == list(range(100))
    assert left.accepted == 100


def test_an_epoch_does_not_end_before_its_stream() -> None:
    inputs, (left, right), _ = opened([mixed([(0, 1), (1, 2)])] * 3, bytes_max=1 << 20)
    left.peek()
    with pytest.raises(AssertionError, match="the stream has more rows"):
        left.spill()
    inputs.drain()
    left.spill()
    with pytest.raises(ConservationError, match="1 live rows came after"):
        left.take_in(mixed([(0, 1)]))
    right.spill()


def test_rows_without_an_input_are_never_ignored() -> None:
    for number in (2, 7, -1, None):
        batch = mixed([(0, 1), (1, 2)])
        odd = batch.set_column(0, "port", pa.array([0, number], pa.int32()))
        inputs, _, _ = opened([odd], 100)
        with pytest.raises((ValueError, KeyError, IndexError, TypeError, pa.ArrowInvalid)):
            inputs.drain()


@pytest.mark.parametrize("column", [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.timestamp("ms")])
def test_the_largest_event_time_counts_rows_that_nobody_processed(column: pa.DataType) -> None:
    schema = pa.schema([("ts", column)])
    unit = 1000 if "ms" in str(column) else 1
    times = pa.array([3000 // unit, None, 9000 // unit, 5000 // unit], pa.int64()).cast(column)
    batch = pa.RecordBatch.from_arrays([times, pa.array([0] * 4, pa.int64())], ["ts", HASH_COLUMN])
    inputs, live = single([batch], edge_schema(schema), times=EventTimes(schema, "ts"))
    end(inputs, [live])
    assert live.times.newest == 9000


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


def gathered(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    _, live = single(batches, batches[0].schema if batches else LEFT, gathers=True)
    while (batch := live.peek()) is not None:
        yield batch
        live.advance(batch.num_rows)


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
    found = list(gathered(batches))
    assert [batch.num_rows for batch in found] == gathered_sizes
    assert [n for batch in found for n in batch["n"].to_pylist()] == list(range(sum(sizes)))


def test_wide_rows_are_gathered_up_to_a_number_of_bytes() -> None:
    """D3."""
    batches = [pa.record_batch({"pad": [b"x" * (1 << 20)]}) for _ in range(20)]
    found = list(gathered(batches))
    assert sum(batch.num_rows for batch in found) == 20
    assert max(batch.nbytes for batch in found) <= GATHERED_BYTES
    assert len(found) < 5


def test_rows_that_come_without_a_hash_get_the_one_that_spark_would_send() -> None:
    """The hashes are Spark's own `xxhash64` of these keys."""
    batch = pa.record_batch({"n": pa.array([0, 1, None], pa.int64()), "day": pa.array([0, 1, 2], pa.date32())})
    with_hash = hashed(batch, ["n"])
    assert with_hash.schema.names == ["n", "day", HASH_COLUMN]
    assert with_hash.column(HASH_COLUMN).to_pylist() == [-5252525462095825812, -7001672635703045582, 42]
    by_two = hashed(batch, ["day", "n"])
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
    _, live = single([batch], schema)
    rows = live.peek()
    assert rows is not None
    assert rows.schema.types == schema.types
    assert rows.column(0).cast(pa.int64()).to_pylist() == [1, None]
    assert rows.column(1).cast(pa.struct([("at", pa.int64())])).to_pylist() == [{"at": 5}, None]
