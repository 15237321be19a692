"""From a micro-batch to subtasks: the key hash, the key group, the partition.

Spark computes the hash once; it travels along as the last column, and everything behind uses it. Rows of unkeyed
edges get a *lane* in place of a hash: their Spark partition, spread evenly over the key groups, so that order is
kept per partition and a recomputed map task sends the same rows to the same subtasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.channel.segment import HASH_COLUMN
from penstock.graph import Edge, Source
from penstock.protocol.keygroups import spread
from penstock.protocol.plan import StagePlan

SOURCE_COLUMN = "__penstock_source"


@dataclass(frozen=True, slots=True)
class SourceLayout:
    """Several sources as one streaming DataFrame: one struct column each, and the number of the source."""

    names: tuple[str, ...]

    @staticmethod
    def of(sources: Sequence[Source]) -> SourceLayout:
        return SourceLayout(tuple(source.name for source in sources))

    def union(self, frames: Sequence[DataFrame]) -> DataFrame:
        """One DataFrame for one streaming query, so that all offsets advance together."""
        if len(frames) == 1:
            return frames[0]
        packed = [self._packed(index, frames) for index in range(len(frames))]
        result = packed[0]
        for frame in packed[1:]:
            result = result.unionByName(frame)
        return result

    def select(self, frame: DataFrame, source: str) -> DataFrame:
        """The rows of one source, as they were before `union`."""
        if len(self.names) == 1:
            return frame
        index = self.names.index(source)
        return frame.where(F.col(SOURCE_COLUMN) == index).select(f"s{index}.*")

    def _packed(self, index: int, frames: Sequence[DataFrame]) -> DataFrame:
        columns = [
            F.struct("*").alias(f"s{k}") if k == index else F.lit(None).cast(_nullable(frame)).alias(f"s{k}")
            for k, frame in enumerate(frames)
        ]
        return frames[index].select(F.lit(index).alias(SOURCE_COLUMN), *columns)


def _nullable(frame: DataFrame) -> StructType:
    return frame.schema


def to_subtasks(frame: DataFrame, edge: Edge, plan: StagePlan) -> DataFrame:
    """Adds the hash column and moves each row to the partition of its subtask."""
    hashed = frame.withColumn(HASH_COLUMN, _hash(edge, plan.max_parallelism))
    subtask = (
        f"cast((pmod(`{HASH_COLUMN}`, {plan.max_parallelism}L) * {plan.parallelism}L)"
        f" div {plan.max_parallelism}L as int)"
    )
    return hashed.repartitionById(plan.parallelism, F.expr(subtask))


def _hash(edge: Edge, max_parallelism: int) -> Column:
    if edge.keys:
        return F.xxhash64(*(F.col(f"`{key}`") for key in edge.keys))
    lanes = ", ".join(f"{lane}L" for lane in spread(max_parallelism))
    return F.expr(f"element_at(array({lanes}), cast(pmod(spark_partition_id(), {max_parallelism}) as int) + 1)")
