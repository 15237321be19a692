"""The only interface through which the engine runs work. Spark implements it, and so does the test runner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from penstock.graph.stages import Stage
from penstock.protocol.ids import BatchId
from penstock.protocol.plan import StagePlan
from penstock.protocol.report import SubtaskReport


class MicroBatch(Protocol):
    """What is in a micro-batch; only the cluster that belongs to the feed can read it."""

    @property
    def planned_for(self) -> Mapping[str, int]:
        """Stages that can take it with this many subtasks only, because their work was planned ahead."""
        ...


@dataclass(frozen=True, slots=True)
class OfferedBatch:
    """A micro-batch that Structured Streaming hands over."""

    batch_id: BatchId
    content: MicroBatch
    offsets_digest: str | None
    query_id: str | None


@dataclass(frozen=True, slots=True)
class StageJob:
    """One stage of one epoch."""

    stage: Stage
    plan: StagePlan
    batch: OfferedBatch | None


class JobFailed(Exception):
    """The cluster could not finish a job: executors lost, subtasks failing again and again. Nothing counts."""


class JobCancelled(JobFailed):
    """The job was cancelled: by this driver, by Ctrl-C, or in Spark's UI."""


class Cluster(Protocol):
    """Runs the subtasks of a stage."""

    @property
    def slots(self) -> int:
        """How many subtasks run at the same time."""
        ...

    def run(self, job: StageJob) -> list[SubtaskReport]:
        """One report per launched subtask, of the winning attempts only.

        Raises: `JobFailed`; `JobCancelled`.
        """
        ...

    def handed_over(self) -> int | None:
        """How many live rows went into the job that ran last, counted by the cluster without the code that reads
        them; None where it cannot tell."""
        ...

    def cancel(self) -> None:
        """Cancels the running job, if there is one; called from other threads. Attempts that go on are losers."""
        ...

    def activity(self) -> str:
        """What the running job does, for people; the text changes when it gets on."""
        ...
