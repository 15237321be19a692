"""What Spark does for a group of jobs right now, as a text that changes whenever one of its tasks gets on."""

from __future__ import annotations

from pyspark import SparkContext

from penstock.spark.quirks.stagerecords import records_of


def activity_of(context: SparkContext, group: str) -> str:
    """Tasks that ended and records that were read and shuffled, per stage that runs."""
    tracker = context.statusTracker()
    stages = []
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        if info is None or info.status != "RUNNING":
            continue
        for stage in info.stageIds:
            seen = tracker.getStageInfo(stage)
            if seen is not None and seen.numActiveTasks:
                stages.append(
                    f"Spark's stage {stage}: {seen.numCompletedTasks} of {seen.numTasks} tasks ended,"
                    f" {seen.numActiveTasks} run, {records_of(context, stage)} records"
                )
    return "; ".join(stages) or "no task runs"
