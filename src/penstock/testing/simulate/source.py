"""Structured Streaming as the engine sees it: an offset log, a commit log, and a handler that gets each batch.

A batch's offsets are written before it is handed over, its commit after the handler returned. After a restart the
batch without a commit comes again, with the same rows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.engine.cluster import OfferedBatch
from penstock.engine.feed import Demand, SourceContended
from penstock.engine.loop import EpochLoop
from penstock.engine.naming import ByName, Naming
from penstock.protocol.ids import BatchId
from penstock.protocol.silence import SourceState
from penstock.testing.batch import TablesBatch
from penstock.testing.simulate.faults import Fault
from penstock.testing.simulate.fibers import Process

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World

PARTITIONS = "/partitions"
Offsets = tuple[tuple[int, int], ...]
LOOK_EVERY_S = 0.1
LANES = 4
"""Partitions of a source at most."""


@dataclass(eq=False, slots=True)
class SimSource:
    """What survives restarts: records, and how far they were cut into batches."""

    tables: list[pa.RecordBatch]
    seed: int = 0
    offsets: dict[int, Offsets] = field(default_factory=dict)
    commits: set[int] = field(default_factory=set)
    ends: bool = True
    """Whether no more rows will come once all were read."""

    def end_of(self, batch: int) -> tuple[int, ...]:
        return tuple(hi for _, hi in self.offsets[batch]) if batch >= 0 else (0,) * len(self.tables)

    def used_up(self, batch: int) -> bool:
        return self.end_of(batch) == tuple(table.num_rows for table in self.tables)

    def part_read(self) -> float:
        """How much of the records is in batches."""
        return sum(self.end_of(max(self.offsets, default=-1))) / sum(table.num_rows for table in self.tables)

    def first_to_run(self) -> int:
        """The newest batch if it has no commit, else the one after it."""
        newest = max(self.offsets, default=-1)
        return newest if newest >= 0 and newest not in self.commits else newest + 1

    def rows(self, batch: int) -> dict[str, Any]:
        """By source; and which partition each row is from."""
        rows: dict[str, Any] = {}
        for number, (table, (lo, hi)) in enumerate(zip(self.tables, self.offsets[batch], strict=True)):
            rows[f"s{number}"] = table.slice(lo, hi - lo)
            rows[f"s{number}{PARTITIONS}"] = self.partitions(batch, number)
        return rows

    def next_offsets(self, batch: int, rng: random.Random, rows_max: int) -> Offsets:
        """How much a micro-batch takes of each source."""
        begin = self.end_of(batch - 1)
        ends = [
            min(table.num_rows, lo + rng.randint(1, rows_max)) for lo, table in zip(begin, self.tables, strict=True)
        ]
        return tuple(zip(begin, ends, strict=True))

    def partitions(self, batch: int, source: int) -> list[int]:
        """The partition of each row of a micro-batch: by key or runs of rows, numbered anew in each micro-batch.

        So do Spark's sources: files are packed by size, and partitions without new data have no number.
        """
        lo, hi = self.offsets[batch][source]
        if self.seed % 2:
            keys: list[int] = self.tables[source].column("key").slice(lo, hi - lo).to_pylist()
            return [(key + batch) % LANES for key in keys]
        rng = random.Random(f"{self.seed} {batch} {source}")
        count = rng.choice((1, 2, 3, 4))
        cuts = sorted(rng.randint(lo, hi) for _ in range(count - 1))
        numbers = rng.sample(range(LANES), count)
        return [numbers[sum(row >= cut for cut in cuts)] for row in range(lo, hi)]

    def rewind(self, batch: int | None) -> None:
        last = -1 if batch is None else batch
        self.offsets = {number: offsets for number, offsets in self.offsets.items() if number <= last}
        self.commits = {number for number in self.commits if number <= last}


class SimFeed:
    """The streaming query of one driver."""

    def __init__(self, world: World, process: Process, loop: Callable[[], EpochLoop | None]) -> None:
        self._world, self._process, self._loop = world, process, loop
        self._stopped = False

    def start(
        self,
        offer: Callable[[OfferedBatch], None],
        on_end: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        demand: Demand,
    ) -> None:
        del offer  # it would wait in a real thread

        def run() -> None:
            try:
                self._run(demand)
            except Exception as error:
                on_failure(error)
            else:
                on_end()

        self._world.scheduler.spawn(self._process, "feed", run)

    def stop(self) -> None:
        self._stopped = True

    def state(self) -> SourceState | None:
        return SourceState(None)

    @property
    def naming(self) -> Naming:
        return ByName()

    def remembers(self, batch_id: BatchId, offsets_digest: str | None) -> bool:
        return str(self._world.source.offsets.get(batch_id)) == offsets_digest

    def rewind(self, batch_id: BatchId | None) -> None:
        self._world.log(f"source rewound to batch {batch_id}")
        self._world.source.rewind(batch_id)

    def _run(self, demand: Demand) -> None:
        world, source = self._world, self._world.source
        while (loop := self._loop()) is None:
            world.scheduler.pause(LOOK_EVERY_S)
        number = source.first_to_run()
        replay = number in source.offsets
        planned_for = _planned(demand)
        while not self._stopped:
            self._call(f"offsets of batch {number}")
            if not replay and number in source.offsets:
                raise SourceContended(f"batch {number}: another streaming query uses the same checkpoint")
            if number not in source.offsets:
                if source.used_up(number - 1):
                    if source.ends:
                        return
                    world.scheduler.pause(LOOK_EVERY_S)
                    continue
                source.offsets[number] = world.next_offsets(number)
            offsets = source.offsets[number]
            replay = False
            if planned_for != _planned(demand):
                planned_for = _planned(demand)
                world.log(f"planned anew for {planned_for}")
                world.scheduler.pause(world.trigger_pause())
            world.log(f"batch {number} on offer: {offsets}")
            content = TablesBatch(source.rows(number), planned_for)
            batch = OfferedBatch(BatchId(number), content, str(offsets), "query")
            offer = loop.propose(batch)
            while not offer.done and not loop.ended:
                world.scheduler.wait(LOOK_EVERY_S)
            loop.require_ingested(offer)
            self._call(f"commit of batch {number}")
            source.commits.add(number)
            number += 1
            world.scheduler.pause(world.trigger_pause())

    def _call(self, what: str) -> None:
        if self._world.outside_call(self._process, what) in {Fault.FAIL_BEFORE, Fault.FAIL_AFTER}:
            raise OSError(f"simulated failure: {what}")


def _planned(demand: Demand) -> dict[str, int]:
    """As on Spark: work is planned ahead where all live rows go to one stage."""
    live = [stage.name for stage in demand.stages if stage.source_inputs]
    return {live[0]: demand.parallelism()[live[0]]} if len(live) == 1 else {}
