"""The jobs of all stages of a query. The feed plans them ahead where it can, and the cluster runs them."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock.engine.feed import Demand
from penstock.graph.pipeline import Pipeline
from penstock.graph.stages import Stage
from penstock.spark.quirks.batches import batch_settings
from penstock.spark.stage_job.exchange import SourceLayout
from penstock.spark.stage_job.job import JobSpec
from penstock.spark.stage_job.stream import NotPlanned, PlannedAhead, StreamPlan
from penstock.spark.stage_job.worker import work_of
from penstock.subtask.attempt import Limits

__all__ = ["PlannedAhead", "StageJobs", "StreamPlan", "settings_for"]

_SETTINGS = {
    # One partition must stay one subtask.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
}


class StageJobs:
    """Makes the job of each stage once: the stage is pickled for the workers only then."""

    def __init__(self, pipeline: Pipeline, store_url: str, limits: Limits) -> None:
        self._layout = SourceLayout.of(pipeline)
        self._store_url, self._limits = store_url, limits
        self._jobs: dict[str, JobSpec] = {}

    def of(self, stage: Stage) -> JobSpec:
        if stage.name not in self._jobs:
            self._jobs[stage.name] = JobSpec(stage, self._layout, work_of(stage, self._store_url, self._limits))
        return self._jobs[stage.name]

    def rows_of(self, sources: Sequence[DataFrame]) -> DataFrame:
        """The rows of all sources in one stream."""
        return self._layout.union(sources)

    def planned(self, demand: Demand) -> StreamPlan:
        """What of the jobs the stream should have in its own plan, as things are now."""
        live = [stage for stage in demand.stages if stage.source_inputs]
        if len(live) != 1:
            return NotPlanned()
        return PlannedAhead(self.of(live[0]), demand.parallelism()[live[0].name], demand.max_parallelism)


def settings_for(rows: StructType) -> dict[str, str]:
    """What Spark must be told before it runs a job over such rows."""
    return {**_SETTINGS, **batch_settings(rows)}
