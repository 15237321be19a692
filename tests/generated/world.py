"""Runs a generated pipeline in this process, and hands rows over as Spark does: the sources of a stage in one stream,
whole partitions in any order (`mixing.py`)."""

from __future__ import annotations

import pyarrow as pa

import penstock as pen
from penstock.engine.epochs import EpochRunner
from penstock.protocol.manifest import Manifest
from penstock.subtask.attempt import Limits
from penstock.testing import Harness, stream_of
from tests.generated.kinds import schema_of
from tests.generated.mixing import Mixing
from tests.generated.nodes import Node
from tests.generated.program import Program, Schedule
from tests.generated.sources import Source


def run(program: Program) -> dict[int, pa.Table]:
    """What the pipeline wrote, by the number of the output."""
    schemas = {node.op.index: schema_of(node.columns) for node in program.sources if isinstance(node.op, Source)}
    names = {node.op.index: node.op.name for node in program.sources if isinstance(node.op, Source)}
    streams = program.streams(_stream)
    world = World(program.schedule, {f"o{node.number}": streams[node.number] for node in program.outputs})
    for step, batch in zip(program.schedule.steps, program.input.tables(schemas), strict=True):
        if step.parallelism is not None:
            world.rescale(min(step.parallelism, program.schedule.max_parallelism))
        if step.crash:
            world.crash()
        world.feed(**{names[index]: table for index, table in batch.items()})
        for _ in range(step.idle):
            world.run()
    world.without_barriers()
    world.settle()
    if program.schedule.flush:
        world.flush()
    world.pass_time("1 h")
    return {
        node.number: pa.Table.from_pylist(world.output(world.outputs[f"o{node.number}"]), schema_of(node.columns))
        for node in program.outputs
    }


def _stream(node: Node) -> pen.Stream:
    assert isinstance(node.op, Source)
    return stream_of(schema_of(node.columns), node.op.name, **node.op.event_time())


class World(Harness):
    """The harness, with a cluster that mixes."""

    def __init__(self, schedule: Schedule, streams: dict[str, pen.Stream]) -> None:
        self._schedule = schedule
        first, *others = streams
        self.outputs = {first: "main", **{name: name for name in others}}
        super().__init__(
            streams[first],
            parallelism=schedule.parallelism,
            max_parallelism=schedule.max_parallelism,
            steps=schedule.barrier,
            **{name: streams[name] for name in others},
        )

    def without_barriers(self) -> None:
        """What is left gets as much time as it takes: that many small epochs come to the same was shown before."""
        self._steps = None
        self._runner = self._started(self._runner.manifest)

    def _started(self, base: Manifest) -> EpochRunner:
        runner = super()._started(base)
        plain = runner.cluster
        schedule = self._schedule
        runner.cluster = Mixing(
            self._store,
            Limits(schedule.segment_bytes, schedule.prefetch_bytes),
            plain.clock,
            rewrite=plain.rewrite,
            steps=plain.steps,
            schedule=schedule,
        )
        return runner
