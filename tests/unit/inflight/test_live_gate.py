"""Several live inputs of one stream behind a gate: whatever the order of rows, the budget, the ranks and the barrier,
every row of every edge comes out once and in order, taken or written."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.inflight.delivery import CountedStream
from penstock.inflight.gate import Channel, Gate
from penstock.inflight.live import LiveInputs, LiveRows
from penstock.inflight.reader import PrefetchingReader
from penstock.inflight.segment import HASH_COLUMN
from penstock.store import MemoryStore
from tests.support.reading import GROUPS, SCHEMA, store_batches

LIVE = 1000
"""Numbers of live rows begin here, those of rows in segments at 0."""


@dataclass(frozen=True)
class World:
    """Rows of the stream as (edge, bytes of the row) in batches, and how they are taken."""

    ranks: list[int]
    stored: list[int]
    batches: list[list[tuple[int, int]]]
    bytes_max: int
    gathers: bool
    steps: list[int]
    endless: bool


@st.composite
def worlds(draw: st.DrawFn) -> World:
    ports = draw(st.integers(2, 4))
    ranks = draw(st.lists(st.integers(0, 1), min_size=ports, max_size=ports) | st.just([0] * ports))
    stored = draw(st.lists(st.sampled_from([0, 0, 1, 9, 60]), min_size=ports, max_size=ports))
    sizes = st.sampled_from([1, 1, 1, 40, 3000])
    runs = st.tuples(st.integers(0, ports - 1), st.integers(1, 12), sizes)
    rows = [(port, size) for port, count, size in draw(st.lists(runs, max_size=25)) for _ in range(count)]
    cuts = draw(st.lists(st.integers(1, 9), min_size=1, max_size=20))
    batches, begin = [], 0
    while begin < len(rows):
        rows_of_batch = cuts[len(batches) % len(cuts)]
        batches.append(rows[begin : begin + rows_of_batch])
        begin += rows_of_batch
    return World(
        ranks,
        stored,
        batches,
        draw(st.sampled_from([0, 60, 400, 5000, 1 << 20])),
        draw(st.booleans()),
        draw(st.lists(st.integers(1, 20), max_size=60)),
        draw(st.booleans()),
    )


class Written:
    """A segment in the making."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.closed = False

    def write(self, batch: pa.RecordBatch) -> None:
        assert not self.closed
        self.numbers += batch.column("number").to_pylist()

    def close(self) -> list:
        self.closed = True
        return []


class Run:
    """One epoch of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        ports = range(len(world.ranks))
        self.edges = [f"edge-{port}" for port in ports]
        self.live: list[list[int]] = [[] for _ in ports]
        batches = [self._mixed(rows) for rows in world.batches]
        self.largest = max((batch.nbytes for batch in batches), default=0)
        self.stream = CountedStream(iter(batches), self.edges)
        self.inputs = LiveInputs.mixed(self.stream, self.edges, world.bytes_max)
        self.writers = [Written() for _ in ports]
        self.rows = [
            LiveRows(SCHEMA, lambda _, writer=writer: writer, gathers=world.gathers) for writer in self.writers
        ]
        store = MemoryStore()
        channels = []
        for port in ports:
            self.inputs.attach(self.edges[port], self.rows[port])
            rows = world.stored[port]
            reads = [store_batches(store, [[0] * rows], f"s{port}")] if rows else []
            reader = PrefetchingReader(store, reads, GROUPS, prefetch_bytes=0)
            channels.append(Channel(self.edges[port], reader, self.rows[port]))
        self.gate = Gate(channels, world.ranks)
        self.taken: list[list[int]] = [[] for _ in ports]
        self.most_waiting = 0

    def _mixed(self, rows: list[tuple[int, int]]) -> pa.RecordBatch:
        columns: list[list[dict | None]] = [[] for _ in self.edges]
        for port, size in rows:
            for edge, column in enumerate(columns):
                column.append({"number": LIVE + len(self.live[port]), "text": "x" * size} if edge == port else None)
            self.live[port].append(LIVE + len(self.live[port]))
        kind = pa.struct([SCHEMA.field("number"), SCHEMA.field("text")])
        return pa.RecordBatch.from_arrays(
            [
                pa.array([port for port, _ in rows], pa.int32()),
                *(pa.array(column, kind) for column in columns),
                pa.array([0] * len(rows), pa.int64()),
            ],
            ["port", *self.edges, HASH_COLUMN],
        )

    def step(self, rows: int) -> bool:
        self.gate.look_ahead()
        taken = self.gate.take(lambda _: rows)
        self.most_waiting = max([self.most_waiting, *(live.bytes_waiting for live in self.rows)])
        if taken is None:
            return False
        assert self.lower_ranks_are_used_up(taken.port), "an input was taken that has to be held back"
        self.taken[taken.port] += taken.batch.column("number").to_pylist()
        return True

    def lower_ranks_are_used_up(self, port: int) -> bool:
        lower = [other for other, rank in enumerate(self.world.ranks) if rank < self.world.ranks[port]]
        return all(len(self.taken[other]) == len(self.everything(other)) for other in lower)

    def everything(self, port: int) -> list[int]:
        return [*range(self.world.stored[port]), *self.live[port]]

    def run(self) -> None:
        """Until the barrier, or to the end."""
        for rows in self.world.steps:
            if not self.step(rows):
                break
        while self.world.endless and self.step(7):
            pass

    def end(self) -> list:
        self.used_up = self.gate.used_up()
        self.inputs.drain()
        reports = [channel.spill() for channel in self.gate.channels]
        self.gate.close()
        return reports


@settings(max_examples=400, deadline=None)
@given(worlds())
def test_every_row_comes_out_once_and_in_order(world: World) -> None:
    run = Run(world)
    run.run()
    reports = run.end()
    counted = run.stream._rows.tolist()
    for port, report in enumerate(reports):
        stored = world.stored[port]
        taken, written = run.taken[port], run.writers[port].numbers
        assert taken == run.everything(port)[: len(taken)]
        assert taken[stored:] + written == run.live[port], "taken, then written, in the order in which they came"
        assert report.live_accepted == counted[port] == len(run.live[port])
        assert report.live_consumed == len(taken[stored:])
        assert report.consumed == len(taken)
    assert run.used_up == all(run.taken[port] == run.everything(port) for port in range(len(world.ranks)))


@settings(max_examples=200, deadline=None)
@given(worlds())
def test_what_waits_is_bounded_by_the_budget_and_one_batch(world: World) -> None:
    run = Run(world)
    run.run()
    run.end()
    if not world.gathers:
        assert run.most_waiting <= world.bytes_max + run.largest


@settings(max_examples=200, deadline=None)
@given(worlds())
def test_inputs_of_one_rank_without_a_backlog_write_nothing_when_nothing_is_cut(world: World) -> None:
    """A3, at any budget, with records larger than it."""
    ports = len(world.ranks)
    run = Run(World([0] * ports, [0] * ports, world.batches, world.bytes_max, world.gathers, world.steps, True))
    run.run()
    run.end()
    assert [writer.numbers for writer in run.writers] == [[]] * ports
    assert run.taken == run.live
    assert run.used_up
