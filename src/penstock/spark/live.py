"""The job of the stage that takes the live rows, planned with the stream where all of them go to one stage.

A job that is made for each micro-batch has its plan analysed each time, and Spark copies every row on its way from the
stream into that plan. In the stream's own plan both are done without; what a micro-batch then is, is its reports, not
its rows. The number of subtasks is part of the plan, so a stream has to be started anew for another number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import BinaryType, StructType
from pyspark.util import PythonEvalType

from penstock.engine.feed import Demand
from penstock.graph.stages import Stage
from penstock.spark.exchange import SourceLayout, quoted, to_subtasks
from penstock.spark.worker import Work, work_of
from penstock.subtask.attempt import Limits

REPORT = StructType().add("report", BinaryType())


@dataclass(frozen=True, slots=True)
class LivePlan:
    """A stage at a number of subtasks; `stage` is None where several stages take live rows."""

    stage: Stage | None
    parallelism: int

    @staticmethod
    def of(demand: Demand) -> LivePlan:
        live = [stage for stage in demand.stages if stage.source_inputs]
        if len(live) != 1:
            return LivePlan(None, 0)
        return LivePlan(live[0], demand.parallelism()[live[0].name])

    @property
    def planned_for(self) -> Mapping[str, int]:
        return {} if self.stage is None else {self.stage.name: self.parallelism}

    def applied_to(
        self, rows: DataFrame, layout: SourceLayout, max_parallelism: int, store_url: str, limits: Limits
    ) -> DataFrame:
        """The stream of reports, or of rows where nothing is planned ahead."""
        if self.stage is None:
            return rows
        placed = to_subtasks(rows, layout, self.stage.source_inputs, self.parallelism, max_parallelism)
        return mapped(placed, call_of(work_of(self.stage, store_url, limits), placed))


def call_of(work: Work, rows: DataFrame) -> Column:
    """The work as a function of all columns. ``mapInArrow`` would take the dot in a name for a field of a struct."""
    function = pandas_udf(work, REPORT, PythonEvalType.SQL_MAP_ARROW_ITER_UDF)  # type: ignore[call-overload]
    return function(*(F.col(quoted(name)) for name in rows.columns))


def mapped(rows: DataFrame, call: Column) -> DataFrame:
    """``rows.mapInArrow(work, REPORT)``."""
    return DataFrame(rows._jdf.mapInArrow(call._jc, False, None), rows.sparkSession)  # noqa: SLF001
