"""What a real driver works with in a crowd: models as its cluster, a feed, a table, and steps that are made when asked.

Faults are drawn at every call that leaves the driver: a job, the publishing of a manifest, a commit.
"""

from __future__ import annotations

import errno
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from penstock.engine.background import Pause, Step
from penstock.engine.cluster import JobFailed, OfferedBatch, StageJob
from penstock.engine.feed import Demand
from penstock.engine.naming import ByName, Naming
from penstock.errors import storage_failed
from penstock.graph.compiler import compile_pipeline
from penstock.graph.pipeline import Pipeline
from penstock.operators.process.declare import value_state
from penstock.operators.process.process import KeyedProcess
from penstock.protocol.commit import CommitPermit, CommitReceipt
from penstock.protocol.ids import BatchId
from penstock.protocol.layout import MANIFESTS
from penstock.protocol.manifest import Committable
from penstock.protocol.parts import head_of, joined, parts_of
from penstock.protocol.plan import StagePlan
from penstock.protocol.report import SubtaskReport
from penstock.protocol.silence import SourceState
from penstock.store.memory import MemoryStore
from penstock.testing.batch import TablesBatch, tables_of
from penstock.testing.inline import stream_of
from penstock.testing.simulate.crowd.model import ModelSubtask, Names, Rows, by_subtask, unpacked
from penstock.testing.tables import Memory, MemoryCommitter, memory_table

if TYPE_CHECKING:
    from penstock.engine.supervisor import Supervisor

SOURCE, STAGE, SINK = "numbers", "numbering", "out"
SLOTS = 64
ROWS = pa.schema({"group": pa.int32(), "number": pa.int32()})


_decoder = msgspec.json.Decoder(SubtaskReport)


class Killed(BaseException):
    """The driver's process is gone; no code of the driver sees this."""


@dataclass(slots=True)
class Faults:
    """Draws what goes wrong. Rates are per call."""

    rng: random.Random
    on: bool = True
    killed: float = 0.02
    job_fails: float = 0.05
    storage_fails: float = 0.03
    commit_fails: float = 0.05
    doubled: float = 0.002
    """Of the subtasks: another attempt writes files, too, and loses."""

    def strike(self, what: str, fails: float, error: Callable[[str], Exception]) -> None:
        """Raises: `Killed`, or what `error` makes."""
        if not self.on:
            return
        drawn = self.rng.random()
        if drawn < self.killed:
            raise Killed(what)
        if drawn < self.killed + fails:
            raise error(f"simulated: {what}")

    def doubles(self) -> bool:
        return self.on and self.rng.random() < self.doubled


class _Numbering(KeyedProcess):
    """Never run: the models stand for it."""

    output = ROWS
    last = value_state(pa.int64())

    def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
        raise NotImplementedError


def pipeline_of(table: str) -> tuple[Pipeline, Names]:
    """One keyed stage with state and a table."""
    numbers = stream_of(ROWS, SOURCE)
    numbered = numbers.key_by("group").process(_Numbering(), name=STAGE)
    pipeline = compile_pipeline([numbered.write(CrowdSink(table), name=SINK).node])
    (stage,) = pipeline.stages
    return pipeline, Names(stage.inputs[0].name, stage.tables[0].name, STAGE, stage.sinks[0].name)


@dataclass(slots=True)
class CrowdCluster:
    """Runs models. `rows_max` says how many rows a subtask takes; `outside` is entered where a driver would wait."""

    store: MemoryStore
    names: Names
    faults: Faults
    rows_max: Callable[[], int]
    outside: Callable[[], AbstractContextManager[object]] = nullcontext
    plan_bytes: list[int] = field(default_factory=list)
    """Of each task of the last job."""
    slots: int = SLOTS
    _attempts: Iterator[int] = field(default_factory=itertools.count)
    _handed_over: int | None = None

    def run(self, job: StageJob) -> list[SubtaskReport]:
        self.faults.strike("a job begins", self.faults.job_fails, JobFailed)
        head, parts = head_of(job.plan), parts_of(job.plan.launched())
        with self.outside():
            self.plan_bytes = [len(head) + len(part) for part in parts]
            answers = self._answers(job, [joined(head, part) for part in parts])
        reports = [_decoder.decode(answer) for answer in answers]
        self.faults.strike("a job ends", self.faults.job_fails, JobFailed)
        return reports

    def _answers(self, job: StageJob, plans: Sequence[StagePlan]) -> list[bytes]:
        rows: Rows | None = None if job.batch is None else tables_of(job.batch)[SOURCE]
        groups = [subtask.groups for subtask in job.plan.subtasks]
        live = [unpacked(b"")] * len(groups) if rows is None else by_subtask(rows, groups)
        self._handed_over = None if rows is None else len(rows)
        answers = []
        for plan in plans:
            (mine,) = plan.subtasks
            tries = [
                ModelSubtask(self.names, plan, mine, self.store, str(next(self._attempts)), self.rows_max()).run(
                    live[mine.subtask]
                )
                for _ in range(1 + self.faults.doubles())
            ]
            answers.append(msgspec.json.encode(tries[-1]))
        self.faults.rng.shuffle(answers)
        return answers

    def handed_over(self) -> int | None:
        return self._handed_over

    def cancel(self) -> None:
        """Jobs are over at once."""

    def activity(self) -> str:
        return ""


class CrowdFeed:
    """Offers what it is told to, when it is told to."""

    def __init__(self) -> None:
        self.stopped = False

    def start(
        self,
        offer: Callable[[OfferedBatch], None],
        on_end: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        demand: Demand,
    ) -> None:
        """The crowd proposes micro-batches itself."""

    def stop(self) -> None:
        self.stopped = True

    def state(self) -> SourceState | None:
        return SourceState(None)

    @property
    def naming(self) -> Naming:
        return ByName()

    def remembers(self, batch_id: BatchId, offsets_digest: str | None) -> bool:  # noqa: ARG002 - numbers never change
        return True

    def rewind(self, batch_id: BatchId | None) -> None:
        """Numbers are made anew for any micro-batch."""


def offered(batch: int, rows: Rows) -> OfferedBatch:
    return OfferedBatch(BatchId(batch), TablesBatch({SOURCE: rows}), f"offsets-{batch}", "crowd")


class ManualBackground:
    """Steps that the crowd's world makes."""

    def __init__(self, name: str, step: Step, on_death: Callable[[BaseException], None]) -> None:
        self.name, self._step = name, step
        self._on_death = on_death
        self.over = False

    def start(self) -> None:
        """There is no thread."""

    def wake(self) -> None:
        """The world makes steps anyway."""

    def join(self, timeout_s: float | None = None) -> bool:  # noqa: ARG002 - nothing runs
        return True

    def step(self) -> Pause:
        if self.over:
            return math.inf
        pause = self._step()
        self.over = pause is None
        return pause


class FaultyStore(MemoryStore):
    """The same files; publishing may fail before or after it happened."""

    def __init__(self, name: str, faults: Faults) -> None:
        super().__init__(name)
        self._faults = faults

    def create(self, path: str, data: bytes) -> None:
        if not path.startswith(MANIFESTS):
            super().create(path, data)
            return
        fails = self._faults.storage_fails
        self._faults.strike("before a manifest", fails, _unreachable)
        super().create(path, data)
        self._faults.strike("after a manifest", fails, _unreachable)


def _unreachable(what: str) -> Exception:
    return storage_failed(what, OSError(errno.EIO, what))


@dataclass(frozen=True, slots=True)
class CrowdSink(Memory):
    """A table of rows that are plain arrays in their committables."""

    def open_committer(self, commit_user: str) -> MemoryCommitter:
        return CrowdCommitter(self.name, commit_user)


_hooks: dict[str, tuple[Faults, Callable[[], AbstractContextManager[object]]]] = {}
"""By table: a sink is part of the pipeline and cannot carry them."""


def hook_table(name: str, faults: Faults, outside: Callable[[], AbstractContextManager[object]] = nullcontext) -> None:
    """What happens at commits to the table of that name."""
    _hooks[name] = (faults, outside)


class CrowdCommitter(MemoryCommitter):
    """Commits that may fail before or after they happened."""

    def __init__(self, name: str, user: str) -> None:
        super().__init__(memory_table(name), user)
        self._faults, self._outside = _hooks[name]

    def commit(
        self,
        permit: CommitPermit,
        committables: Sequence[Committable],
        *,
        watermark: int | None,
        properties: Mapping[str, str],
        still_leader: Callable[[], bool],
    ) -> CommitReceipt:
        fails = self._faults.commit_fails
        self._faults.strike("before a commit", fails, RuntimeError)
        with self._outside():
            receipt = super().commit(
                permit, committables, watermark=watermark, properties=properties, still_leader=still_leader
            )
        self._faults.strike("after a commit", fails, RuntimeError)
        return receipt

    def batches_of(self, committables: Sequence[Committable]) -> list[pa.RecordBatch]:
        rows = unpacked(b"".join(committable.payload for committable in committables))
        return [pa.RecordBatch.from_arrays([pa.array(rows[:, 0]), pa.array(rows[:, 1])], schema=ROWS)]


@dataclass(slots=True)
class CrowdDriver:
    """A driver and the steps that it wants to be made."""

    supervisor: Supervisor
    backgrounds: dict[str, ManualBackground]

    def step(self, name: str) -> Pause:
        return self.backgrounds[f"penstock-{name}"].step()
