"""Operators that look for what must not be: a row behind its watermark, a broadcast row seen twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.operators.base import KeyedSpec, Operator, OperatorContext, OperatorDefaults
from penstock.operators.process.connect import ConnectProcess
from penstock.operators.process.declare import broadcast_map
from penstock.records import Due, Records, Time

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World


@dataclass(frozen=True)
class WatermarkProbe(KeyedSpec):
    """Hands rows on, and checks that none of them is late: their sources deliver none that are."""

    name: str
    output_schema: pa.Schema
    keys: tuple[str, ...]
    world: World

    @property
    def kind(self) -> str:
        return "probe"

    @property
    def timed(self) -> bool:
        return True

    def build(self, context: OperatorContext) -> Operator:
        del context
        return _Probing(self.world)


class _Probing(OperatorDefaults):
    def __init__(self, world: World) -> None:
        self._world = world
        self._before: np.ndarray[Any, np.dtype[np.int64]] | None = None

    def process(self, records: Records) -> Iterator[pa.RecordBatch]:
        assert records.time is not None
        watermarks = records.time.watermark_of(records.hashes)
        times = records.batch.column("ts").cast(pa.int64()).to_numpy()
        if (watermarks > times).any():
            late = int(np.flatnonzero(watermarks > times)[0])
            self._world.scheduler.fail(
                f"watermark: id {records.batch.column('id')[late]} of {times[late]} comes at {watermarks[late]}"
            )
        yield records.batch

    def advance(self, time: Time) -> Iterator[pa.RecordBatch]:
        if self._before is not None and (time.watermarks < self._before).any():
            self._world.scheduler.fail("watermark: it went back")
        self._before = time.watermarks.copy()
        return iter(())

    def next_due(self) -> Due:
        return Due()


def with_rules(world: World, schema: pa.Schema) -> ConnectProcess:
    """Counts how often each broadcast row was applied, and notes in each record how many it has seen."""

    class WithRules(ConnectProcess):
        inputs = ("records", "rules")
        output = schema
        applied = broadcast_map(pa.int64(), pa.int64())

        def process(self, port: str, key: dict[str, Any], rows: list[dict[str, Any]], state: Any, out: Any) -> None:
            del port
            world.checks.key_group(key["key"])
            twice = [rule for rule, times in state.applied.items() if times != 1]
            if twice:
                world.scheduler.fail(f"broadcast: rows {twice} were applied more than once")
            for row in rows:
                row["rules"] = len(state.applied)
            out.emit_many(rows)

        def process_broadcast(self, port: str, rows: list[dict[str, Any]], broadcast: Any) -> None:
            del port
            for row in rows:
                broadcast.applied[row["id"]] = broadcast.applied.get(row["id"], 0) + 1

    return WithRules()
