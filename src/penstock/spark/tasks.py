"""Work that is not a stage of a query, as a Spark job: bytes in, bytes out, one task each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from penstock.spark.failures import jvm_calls


class SparkTasks:
    """Runs a function over payloads; called from any thread, which waits for the job."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._context, self._name = spark.sparkContext, name

    def __call__(self, work: Callable[[bytes], bytes], payloads: Sequence[bytes]) -> list[bytes]:
        with jvm_calls(self._context):
            self._context.setJobGroup(f"penstock-{self._name}", f"{self._name}: {len(payloads)} tasks of upkeep")
            return self._context.parallelize(payloads, len(payloads)).map(work).collect()
