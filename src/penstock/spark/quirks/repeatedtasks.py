"""Spark counts what a map task wrote once more when it runs the task again, and tells late that it did.

What Spark's status tracker knows may lag behind what has happened. So the events that are under way are waited for
before the tracker is asked.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

from contextlib import suppress

from py4j.protocol import Py4JError
from pyspark import SparkContext


def tasks_run_again(context: SparkContext, group: str) -> bool:
    """Whether Spark ran tasks of the group's last job more than once, or stages of it."""
    with suppress(Py4JError):
        context._jsc.sc().listenerBus().waitUntilEmpty()  # noqa: SLF001 - no public way
    tracker = context.statusTracker()
    job = tracker.getJobInfo(max(tracker.getJobIdsForGroup(group), default=-1))
    stages = [] if job is None else [tracker.getStageInfo(stage) for stage in job.stageIds]
    return any(
        stage.currentAttemptId > 0 or stage.numFailedTasks > 0 or stage.numCompletedTasks > stage.numTasks
        for stage in stages
        if stage is not None
    )
