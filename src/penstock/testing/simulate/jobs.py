"""Random pipelines whose right result is known: each keyed operator numbers the records of a key.

A record's numbers show whether it was lost, doubled or overtaken, and whether the state of its key was kept: the
numbers of a key are 1 to n, in the order in which its source delivered the records.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from penstock.api.outputs import Output
from penstock.api.read import source_node
from penstock.api.stream import Stream
from penstock.graph.compiler import compile_pipeline
from penstock.graph.nodes import Input, OperatorNode, SourceNode
from penstock.graph.pipeline import Pipeline
from penstock.hashing import hash_columns
from penstock.operators.aggregate import functions as aggregates
from penstock.operators.join.join import HOWS, How
from penstock.operators.process.declare import value_state
from penstock.operators.process.process import KeyedProcess
from penstock.operators.window.windows import session_window, tumbling_window
from penstock.protocol.keygroups import groups_of
from penstock.testing.simulate.arrivals import DISORDER_S
from penstock.testing.simulate.branches import Branch, draw_branches
from penstock.testing.simulate.changes import Variant
from penstock.testing.simulate.probe import WatermarkProbe, with_rules
from penstock.testing.simulate.table import SimSink

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World

SOURCE_IDS = 1_000_000
"""Ids of the second source begin here."""
FILTERED = 7
"""With a filter, ids that this divides are dropped."""
KEYS_PER_COARSE = 3
WITH_TRUNK = 0.3
"""Of worlds with branches."""
RULES_FROM_ID = 9 * SOURCE_IDS
"""Ids of broadcast rows; they end in no table."""
LAG_S = 40
WINDOW_S = 4
GAP_S = 3
JOIN_S = (-LAG_S - 6, -LAG_S + 6)
"""The second source is so far behind the first."""
CROWDS = 2
"""So many full micro-batches there are at least where they should crowd."""
LATE_S = 40.0
LATE = 0.25
"""Of the records, where they may be late: so much behind at most."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a pipeline looks like."""

    sources: int = 1
    map_first: bool = False
    filter: bool = False
    two_keyed: bool = False
    map_between: bool = False
    totals: bool = False
    probe: bool = False
    rules: bool = False
    windows: Literal["tumbling", "session"] | None = None
    join: How | None = None
    """Of the two sources."""
    row_cost: float = 0.0
    map_cost: float = 0.0
    """Of an epoch, per row."""
    trunk: bool = True
    """Whether there is anything but branches."""
    late: bool = False
    """Whether records may be late."""
    branches: tuple[Branch, ...] = ()

    @property
    def record_cost(self) -> float:
        """Of an epoch, for one record on its way through all stages."""
        return self.map_cost * (self.map_first + self.map_between) + self.row_cost * (1.5 if self.two_keyed else 1.0)

    @classmethod
    def draw(cls, rng: random.Random, *, calm: bool) -> Shape:
        """Few parts each: a thousand worlds have everything with everything, and a small one is soon over."""
        branches = () if calm else draw_branches(rng)
        trunk = not branches or rng.random() < WITH_TRUNK
        late = any(branch.late for branch in branches)
        sources = max([rng.choice((1, 1, 2)) if trunk else 1, *(branch.sources for branch in branches)])
        return cls(
            sources=sources,
            map_first=rng.random() < 0.2,
            filter=rng.random() < 0.3,
            two_keyed=trunk and rng.random() < 0.25,
            map_between=rng.random() < 0.2,
            totals=trunk and rng.random() < 0.1,
            probe=not late and rng.random() < 0.35,
            rules=trunk and rng.random() < 0.2,
            windows=rng.choice(("tumbling", "session")) if not late and rng.random() < 0.2 else None,
            join=rng.choice(HOWS) if sources == 2 and not late and rng.random() < 0.4 else None,
            row_cost=rng.choice((0.1, 0.3, 0.3) if calm else (0.0, 0.02, 0.1, 0.3)),
            map_cost=rng.choice((0.0, 0.0, 0.02, 0.1, 0.3)),
            trunk=trunk,
            late=late,
            branches=branches,
        )

    @property
    def crowded(self) -> int:
        """As for a branch."""
        return max((branch.crowded for branch in self.branches), default=0)

    @property
    def waits(self) -> bool:
        """Whether single rows may take longer than an epoch: the barrier cannot interrupt them."""
        return any(branch.kind == "calls" or branch.crowded for branch in self.branches)

    @property
    def schema(self) -> pa.Schema:
        """Of all records; what no operator would look at is left out."""
        columns = {"id": pa.int64(), "key": pa.int64(), "pad": pa.string(), "ts": pa.timestamp("us"), "n1": pa.int64()}
        if self.two_keyed or self.totals:
            columns["coarse"] = pa.int64()
        if self.two_keyed:
            columns["n2"] = pa.int64()
        if self.rules:
            columns["rules"] = pa.int64()
        return pa.schema(columns)


def pipeline_of(shape: Shape, world: World, variant: Variant | None = None) -> Pipeline:
    """The pipeline, writing to the world's tables and spending its virtual time."""
    streams = [
        Stream(
            source_node(f"s{number}", shape.schema, None, event_time="ts", watermark=DISORDER_S, idle=world.wall.idle_s)
        )
        for number in range(shape.sources)
    ]
    outputs = _trunk(shape, world, list(streams), variant or Variant()) if shape.trunk else []
    for branch in shape.branches:
        outputs += branch.outputs(world, list(streams))
    letters = [branch.letters for branch in shape.branches if branch.letters is not None]
    sink = SimSink(world.tables[letters[0]]) if letters else None
    pipeline = compile_pipeline([output.node for output in outputs], sink)
    for binding in pipeline.sinks():
        assert isinstance(binding.sink, SimSink)
        binding.sink.table.sink = binding.name
    return pipeline


def _trunk(shape: Shape, world: World, streams: list[Stream], variant: Variant) -> list[Output]:
    """Everything through keyed operators that number it."""
    schema = shape.schema

    def costly(batch: pa.RecordBatch) -> pa.RecordBatch:
        world.scheduler.spend(batch.num_rows * shape.map_cost * world.epoch_s)
        return batch

    if shape.map_first:
        streams = [stream.map_batches(costly, name=f"map{number}") for number, stream in enumerate(streams)]
    outputs: list[Output] = []
    if shape.join is not None:
        left, right = (stream.key_by("key") for stream in streams)
        pairs = left.join(right, within=JOIN_S, how=shape.join, name="join")
        outputs.append(pairs.write(SimSink(world.tables["pairs"]), name="pairs"))
    stream = streams[0] if len(streams) == 1 else streams[0].union(*streams[1:], name="union")
    if shape.filter:
        stream = stream.filter(lambda batch: np.asarray(batch.column("id")) % FILTERED != 0, name="filter")
    if shape.probe:
        probe = WatermarkProbe("probe", schema, ("key",), world)
        stream = Stream(OperatorNode(probe, True, (Input(stream.node, ("key",)),)))
    numbering, row_cost_s = partial(_numbering, world, schema), shape.row_cost * world.epoch_s
    if variant.front:
        stream = stream.map_batches(_same, name="front")
    if variant.fused:
        stream = stream.map_batches(_same, name="fused")
    if variant.staged:
        stream = stream.key_by("key").process(_handing_on(schema), name="staged")
    first = numbering("key", "n1", row_cost_s, variant.field)
    stream = stream.key_by("key").process(first, name=variant.first)
    if variant.behind:
        stream = stream.map_batches(_same, name="behind")
    if shape.map_between:
        stream = stream.map_batches(costly, name="between")
    if shape.two_keyed:
        stream = stream.key_by("coarse").process(numbering("coarse", "n2", row_cost_s / 2), name="second")
    if shape.rules:
        rules = Stream(SourceNode(f"s{shape.sources}", schema, None)).broadcast()
        stream = stream.key_by("key").connect(rules, process=with_rules(world, schema), name="rules")
    outputs.append(stream.write(SimSink(world.tables["records"]), name="records"))
    return [*outputs, *_behind(shape, world, stream)]


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _behind(shape: Shape, world: World, stream: Stream) -> Iterator[Output]:
    if shape.totals:
        totals = stream.key_by("coarse").aggregate(n=aggregates.count(), total=aggregates.sum("id"), name="totals")
        yield totals.write(SimSink(world.tables["totals"]), name="sums")
    if shape.windows is not None:
        kind = tumbling_window(WINDOW_S) if shape.windows == "tumbling" else session_window(GAP_S)
        windows = stream.key_by("key").window(kind, on="ts")
        panes = windows.aggregate(n=aggregates.count(), total=aggregates.sum("id"), name="windows")
        yield panes.write(SimSink(world.tables["windows"]), name="panes")


def _handing_on(schema: pa.Schema) -> KeyedProcess:
    class HandingOn(KeyedProcess):
        output = schema

        def process(self, key: dict[str, Any], rows: list[dict[str, Any]], state: Any, out: Any) -> None:
            del key, state
            out.emit_many(rows)

    return HandingOn()


def _numbering(
    world: World, schema: pa.Schema, key_column: str, column: str, row_cost_s: float, field: str | None = None
) -> KeyedProcess:
    """`field`: more state, which must hold the number as long as it is there."""

    class Numbering(KeyedProcess):
        output = schema
        n = value_state(pa.int64())

        def process(self, key: dict[str, Any], rows: list[dict[str, Any]], state: Any, out: Any) -> None:
            world.checks.key_group(key[key_column])
            world.hanging.in_code()
            world.scheduler.spend(len(rows) * row_cost_s)
            number = state.n or 0
            for row in rows:
                number += 1
                row[column] = number
            state.n = number
            if field is not None:
                setattr(state, field, number)
            out.emit_many(rows)

    if field is None:
        return Numbering()
    more: type[KeyedProcess] = type("Numbering", (Numbering,), {field: value_state(pa.int64())})
    return more()


@dataclass(slots=True)
class Records:
    """What the sources deliver: a log per source, and which keys are hot."""

    tables: list[pa.RecordBatch]
    hashes: dict[int, int]
    """Spark's hash by key value."""

    @classmethod
    def draw(cls, rng: random.Random, shape: Shape, rows_max: int) -> Records:
        keys = rng.choice((2, 5, 12, 24))
        if shape.crowded:
            keys = 2
        skew = rng.choice((0.0, 0.0, 0.5, 0.9))
        big = rng.choice((0.0, 0.0, 0.02))
        tables = []
        for source in range(shape.sources):
            rows = rng.randint(rows_max // (3 * shape.sources), rows_max // shape.sources)
            rows = max(rows, CROWDS * shape.crowded)
            chosen = [0 if rng.random() < skew else rng.randrange(keys) for _ in range(rows)]
            pads = ["x" * (4000 if rng.random() < big else rng.randrange(20)) for _ in range(rows)]
            times = [row - rng.random() * DISORDER_S - source * LAG_S for row in range(rows)]
            if shape.late:
                times = [time - (rng.random() * LATE_S if rng.random() < LATE else 0.0) for time in times]
            tables.append(
                _table(shape.schema, source * SOURCE_IDS + 1, chosen, pads, [round(1e6 * time) for time in times])
            )
        if shape.rules:
            rows = rng.randint(1, 8)
            tables.append(_table(shape.schema, RULES_FROM_ID, [0] * rows, [""] * rows, [0] * rows))
        hashes = hash_columns([pa.array(range(keys), pa.int64())])
        return cls(tables, dict(zip(range(keys), hashes.tolist(), strict=True)))

    def rows(self) -> list[dict[str, Any]]:
        """What has to be in the table in the end."""
        return [row for table in self.tables for row in table.to_pylist() if row["id"] < RULES_FROM_ID]


def _table(schema: pa.Schema, first_id: int, keys: list[int], pads: list[str], times: list[int]) -> pa.RecordBatch:
    columns: dict[str, list[Any]] = {
        "id": list(range(first_id, first_id + len(keys))),
        "key": keys,
        "coarse": [key // KEYS_PER_COARSE for key in keys],
        "pad": pads,
        "ts": times,
    }
    zeros = [0] * len(keys)
    return pa.RecordBatch.from_pydict({name: columns.get(name, zeros) for name in schema.names}, schema=schema)


def group_of(value: int, hashes: dict[int, int], max_parallelism: int) -> int:
    return int(groups_of(np.array([hashes[value]]), max_parallelism)[0])
