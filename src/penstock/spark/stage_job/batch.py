"""What the feed offers: a micro-batch is either rows, or the reports of a job that was planned with the stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """The rows go to one stage, whose job is in the stream's own plan: to run `reports` is to run that job."""

    reports: DataFrame
    stage: str
    parallelism: int

    @property
    def planned_for(self) -> Mapping[str, int]:
        return {self.stage: self.parallelism}


@dataclass(frozen=True, slots=True)
class RowsBatch:
    """The rows of all sources; each stage that takes some of them has a job of its own, made for this micro-batch."""

    rows: DataFrame

    @property
    def planned_for(self) -> Mapping[str, int]:
        return {}


Batch: TypeAlias = PlannedBatch | RowsBatch
