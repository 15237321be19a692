"""The plan of a running streaming query, which follows the wanted number of subtasks between two micro-batches."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.spark.quirks.streamplans import change_partitions
from penstock.spark.quirks.streamrdd import partitions_of
from penstock.spark.stage_job.jobs import PlannedAhead, StreamPlan


class LivePlan:
    """Which plan Spark uses for its next micro-batch, and which one a micro-batch has.

    Spark plans in its own thread. So a micro-batch may have been planned before a change and be handed over after it.
    Then it is recognised by the number of its partitions, and taken with the number for which it was planned.
    """

    def __init__(self, session: SparkSession, plan: StreamPlan, wanted: Callable[[], StreamPlan]) -> None:
        self._session, self._wanted = session, wanted
        self._lock = threading.Lock()
        self._possible = [plan]
        """What the next micro-batch may be planned with; Spark plans with the last one from now on."""
        self._seen = plan
        """Spark is known to plan with it."""
        self._begun = False
        self.query: StreamingQuery | None = None

    def follow(self) -> bool:
        """Has Spark plan as is wanted now, from its next micro-batch on; called from any thread. False where it cannot:
        the query has to be started anew for that.

        A query that has not handed over anything yet may not have a plan, or has planned its first micro-batch.
        """
        with self._lock:
            now, wanted = self._possible[-1], self._wanted()
            if now == wanted:
                return True
            if not (self._begun and self.query and isinstance(now, PlannedAhead) and isinstance(wanted, PlannedAhead)):
                return False
            old, new = now.parallelism, wanted.parallelism
            if not change_partitions(self.query, self._session, old=old, new=new):
                return False
            self._possible.append(wanted)
            return True

    def of(self, frame: DataFrame) -> StreamPlan | None:
        """The plan of the micro-batch that Spark hands over; None where the query has to be started anew."""
        follows = self.follow()
        self._begun = True
        with self._lock:
            return self._recognised(frame) if follows else None

    def handed_back(self) -> None:
        """The handler returns: what Spark plans from now on has the newest plan, or one that is still to come."""
        with self._lock:
            del self._possible[:-1]

    def _recognised(self, frame: DataFrame) -> StreamPlan | None:
        if self._possible == [self._seen]:
            return self._seen
        partitions = partitions_of(frame)
        if partitions == 0:  # Spark has proved that there are no rows: any number will do
            return self._possible[-1]
        for plan in self._possible:
            if isinstance(plan, PlannedAhead) and plan.parallelism == partitions:
                self._seen = plan
                return plan
        return None
