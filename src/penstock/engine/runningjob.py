"""The job that runs right now, and how another thread cancels that one and no other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.engine.cluster import Cluster
from penstock.protocol.ids import CheckpointId, Generation


@dataclass(frozen=True, slots=True, eq=False)
class RunningJob:
    """The stage whose subtasks run right now, since when, and how long they may step."""

    stage: str
    checkpoint: CheckpointId
    generation: Generation
    started_s: float
    budget_s: float | None


@dataclass(slots=True)
class Jobs:
    """The jobs of one query, which run one after another."""

    running: RunningJob | None = None
    """For other threads, which may see the last one a little too long."""
    broken: RunningJob | None = None
    """The job that ran last, if it ended with an error."""
    _ending: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def run(self, job: RunningJob) -> Iterator[None]:
        self.running, self.broken = job, None
        try:
            yield
        except BaseException:
            self.broken = job
            raise
        finally:
            with self._ending:
                self.running = None

    def cancel(self, job: RunningJob, cluster: Cluster) -> None:
        """Cancels this job, if it still runs: the next one cannot begin before it was done."""
        with self._ending:
            if self.running is job:
                cluster.cancel()
