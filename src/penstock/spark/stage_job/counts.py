"""How many live rows Spark itself counted: what the map side wrote to the shuffle, and what the other side read.

None of our Python takes part in these counts. What result tasks read counts once for each partition. What map tasks
wrote counts once more when Spark runs a map task again: then it tells nothing, and the other count stands alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import SparkContext

from penstock.protocol.ids import BatchId
from penstock.spark.quirks.exchangecounts import READ, WRITTEN, ExchangeCounts
from penstock.spark.quirks.repeatedtasks import tasks_run_again


class JobCounts:
    """Spark's count of the live rows of one job after another."""

    def __init__(self, context: SparkContext, group: str) -> None:
        self._context, self._group = context, group
        self._exchanges: dict[str, ExchangeCounts] = {}
        self._last: tuple[str, BatchId] | None = None

    def begin(
        self, stage: str, batch_id: BatchId, executed_plan: Callable[[], Any], *, goes_on: bool
    ) -> Callable[[int], int | None]:
        """To be called before the job. Afterwards the result tells from the number of rows that were delivered how many
        have to be, or None where Spark does not tell.

        `executed_plan` has Spark's counts. With `goes_on` it is the same plan when the micro-batch is tried again.
        """
        exchange = self._exchanges.setdefault(stage, ExchangeCounts())
        job = (stage, batch_id)
        again, self._last = goes_on and job == self._last, job

        def rows(name: str) -> int | None:
            return exchange.of(executed_plan(), name)

        before = rows(READ) if again else 0

        def read() -> int | None:
            now = rows(READ)
            return None if now is None or before is None else now - before

        def count(delivered: int) -> int | None:
            written = rows(WRITTEN)
            if written is None:
                return None
            return handed_over(written, delivered, lambda: again or tasks_run_again(self._context, self._group), read)

        return count


def handed_over(
    written: int, delivered: int, run_again: Callable[[], bool], read: Callable[[], int | None]
) -> int | None:
    """The count that the rows that were delivered have to match. Only a doubt costs more calls into the JVM.

    >>> handed_over(10, 10, lambda: False, lambda: 99), handed_over(14, 10, lambda: False, lambda: 10)
    (10, 14)
    >>> handed_over(14, 10, lambda: True, lambda: 10), handed_over(9, 10, lambda: True, lambda: 10)
    (10, 9)
    """
    return read() if written > delivered and run_again() else written
