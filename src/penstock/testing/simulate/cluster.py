"""Spark as the engine sees it: attempts that die before or after writing, run twice, or go on when their job is over.

Each attempt is a process of its own. The real `run_subtask` runs in it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.engine.cluster import JobCancelled, JobFailed, StageJob
from penstock.graph.stages import Edge
from penstock.hashing import hash_columns
from penstock.inflight.delivery import CountedStream
from penstock.inflight.segment import HASH_COLUMN
from penstock.protocol.keygroups import groups_of
from penstock.protocol.plan import StagePlan
from penstock.protocol.report import SubtaskReport
from penstock.subtask.attempt import Limits, run_subtask
from penstock.subtask.watchdog import watch_over
from penstock.testing.batch import tables_of
from penstock.testing.mixing import live_batches, live_inputs, rows_in
from penstock.testing.simulate.checks import CANCELLED
from penstock.testing.simulate.faults import Fault
from penstock.testing.simulate.fibers import Crashed, Fiber, Process
from penstock.testing.simulate.source import LANES, PARTITIONS
from penstock.testing.simulate.storage import SimStore

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World

TRIES = 4
WAITING_BYTES = (0, 70, 150, 300, 1 << 20)
"""Of an edge, in memory, where several meet; a small row takes about 60 bytes. Some rows wait, others are too many."""


@dataclass(slots=True)
class _Running:
    """A job in progress, as the driver that waits for it sees it."""

    job: StageJob
    waiter: Fiber
    reports: dict[int, SubtaskReport] = field(default_factory=dict)
    to_start: list[int] = field(default_factory=list)
    attempts: dict[int, int] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    running: int = 0
    failed: str | None = None


class SimCluster:
    """The cluster of one driver."""

    def __init__(self, world: World, process: Process, limits: Limits, slots: int) -> None:
        self._world, self._process, self._limits, self._slots = world, process, limits, slots
        self._running: _Running | None = None
        self._attempts: list[Process] = []
        """By attempt id: Spark numbers attempts within an application, so each driver begins anew."""
        self._handed_over: int | None = None

    @property
    def slots(self) -> int:
        return self._slots

    def handed_over(self) -> int | None:
        return self._handed_over

    def run(self, job: StageJob) -> list[SubtaskReport]:
        world = self._world
        subtasks = [subtask.subtask for subtask in job.plan.launched()]
        world.checks.job_planned(self._process, job.plan, world.stage_number(self._process, job.stage))
        fault = world.outside_call(self._process, f"job {job.stage.name} for {job.plan.checkpoint}: {subtasks}")
        if fault is Fault.FAIL_BEFORE:
            raise JobFailed("simulated: not started")
        world.checks.job_begins(self._process, job.plan.checkpoint)
        self._handed_over = rows_in(job)
        running = self._running = _Running(job, world.scheduler.current, to_start=list(subtasks))
        doom = world.rng.randrange(len(subtasks)) if world.faults.costly(world.faults.rates.job_failure) else None
        while len(running.reports) < len(subtasks):
            if doom is not None and len(running.reports) > doom:
                running.failed = "simulated: executors lost"
            if running.failed is not None:
                raise (JobCancelled if running.failed == CANCELLED else JobFailed)(running.failed)
            while running.to_start and running.running < self._slots:
                self._start(running, running.to_start.pop(0))
            world.scheduler.wait()
        if fault is Fault.CRASH_AFTER:
            world.crash(self._process)
        if fault is Fault.FAIL_AFTER:
            raise JobFailed("simulated: the driver lost contact")
        reports = list(running.reports.values())
        world.rng.shuffle(reports)
        winners = [self._attempts[int(report.attempt)].name for report in reports]
        world.checks.accepted(self._process, job.plan.checkpoint, world.stage_number(self._process, job.stage), winners)
        return reports

    def cancel(self) -> None:
        if self._running is not None:
            self._world.hanging.cancelled(self._running.processes)
            self._world.log("cancelled")
            self._running.failed = CANCELLED
            self._world.scheduler.wake(self._running.waiter)

    def activity(self) -> str:
        return "" if self._running is None else f"{len(self._running.reports)} reports"

    def _start(self, running: _Running, subtask: int) -> None:
        world = self._world
        self._attempt(running, subtask)
        if world.faults.costly(world.faults.rates.speculation):
            self._attempt(running, subtask)

    def _attempt(self, running: _Running, subtask: int) -> None:
        world = self._world
        process, attempt = world.executor(), len(self._attempts)
        self._attempts.append(process)
        running.attempts[subtask] = running.attempts.get(subtask, 0) + 1
        running.running += 1
        running.processes.append(process)
        lost = world.faults.costly(world.faults.rates.report_lost)

        def body() -> None:
            world.scheduler.current.tags["groups"] = running.job.plan.subtasks[subtask].groups
            try:
                report = self._run_one(running.job, subtask, attempt, process)
            except Crashed:
                self._ended(running, subtask, process, None)
                raise
            except AssertionError as error:  # for mistakes of our own only
                world.scheduler.fail(f"assertion: {process.name} of {running.job.stage.name}-{subtask}: {error}")
            except Exception as error:  # Spark runs the task again
                world.log(f"attempt {process.name} raised {error!r}")
                report = None
            self._ended(running, subtask, process, None if lost else report)

        world.scheduler.spawn(process, f"{running.job.stage.name}-{subtask}", body, world.rng.random() * 0.01)

    def _ended(self, running: _Running, subtask: int, process: Process, report: SubtaskReport | None) -> None:
        """The driver hears of it, unless it waits no more."""
        running.running -= 1
        self._world.log(f"attempt {process.name} {'reports' if report else 'is lost'}")
        if report is not None:
            running.reports.setdefault(subtask, report)
        elif subtask not in running.reports:
            if running.attempts[subtask] >= TRIES:
                running.failed = f"simulated: subtask {subtask} failed {TRIES} times"
            else:
                running.to_start.append(subtask)
        self._world.scheduler.wake(running.waiter)

    def _run_one(self, job: StageJob, subtask: int, attempt: int, process: Process) -> SubtaskReport:
        edges, stream = job.stage.source_inputs, None
        chance = random.Random(f"{self._world.seed}/{process.name}")
        if job.plan.live and job.batch is not None:
            tables = tables_of(job.batch)
            rows = [delivered(tables, edge, job.plan, subtask, chance) for edge in edges]
            stream = CountedStream(iter(live_batches(rows, chance)), [edge.name for edge in edges])
        store = SimStore(self._world, process, self._world.disk)
        limit_s, now = self._world.hanging.limit_s, self._world.scheduler.clock
        watchdog = watch_over(
            job.stage, job.plan, subtask, store=store, attempt=str(attempt), limit_s=limit_s, clock=now
        )
        with self._world.hanging.watching(process, watchdog) as clock:
            report = run_subtask(
                job.stage,
                job.plan,
                subtask,
                store=store,
                limits=self._limits,
                attempt=str(attempt),
                live=None if stream is None else live_inputs(stream, edges, chance.choice(WAITING_BYTES)),
                clock=clock,
            )
        report = report if stream is None else stream.stamped(report)
        return msgspec.json.decode(msgspec.json.encode(report), type=SubtaskReport)


def delivered(
    tables: Mapping[str, Any], edge: Edge, plan: StagePlan, subtask: int, chance: random.Random
) -> pa.RecordBatch:
    """What Spark's shuffle hands to one subtask: rows by key, or by the partition they came from.

    Rows of a partition keep their order; which partition comes first is not known.
    """
    rows, partitions = tables[edge.producer], np.array(tables[edge.producer + PARTITIONS], np.int64)
    if edge.keys:
        hashes = hash_columns([rows.column(key) for key in edge.keys])
    else:
        hashes = partitions * max(1, plan.max_parallelism // LANES) % plan.max_parallelism
    mine = np.flatnonzero(groups_of(hashes, plan.max_parallelism) * plan.parallelism // plan.max_parallelism == subtask)
    turns = np.array(chance.sample(range(LANES), LANES))
    mine = mine[np.argsort(turns[partitions[mine]], kind="stable")]
    taken = rows.take(pa.array(mine))
    return pa.RecordBatch.from_arrays([*taken.columns, pa.array(hashes[mine])], [*taken.schema.names, HASH_COLUMN])
