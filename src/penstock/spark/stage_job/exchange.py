"""From a micro-batch to subtasks: the key hash, the key group, the partition.

Spark computes the hash; it travels along as the last column, and everything behind uses it. Where the key is quick to
hash, the subtask computes the same hash again instead: a column less to send. Rows of unkeyed
edges get a *lane* in place of a hash: their Spark partition, spread evenly over the key groups, so that order is
kept per partition and a recomputed map task sends the same rows to the same subtasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.graph.pipeline import Pipeline
from penstock.graph.stages import Edge
from penstock.inflight.lanes import BLOCK_ROWS, spread
from penstock.inflight.segment import HASH_COLUMN
from penstock.protocol.keygroups import order_bits

SOURCE_COLUMN = "__penstock_source"
PORT_COLUMN = "__penstock_port"


@dataclass(frozen=True, slots=True)
class SourceLayout:
    """Several sources as one streaming DataFrame: one struct column each, and the number of the source.

    A single source that is read once, by key, comes with its hash: planned once, and not again for each micro-batch.
    """

    names: tuple[str, ...]
    hashed_by: Edge | None = None

    @staticmethod
    def of(pipeline: Pipeline) -> SourceLayout:
        edges = [edge for stage in pipeline.stages for edge in stage.source_inputs]
        hashed_by = edges[0] if len(edges) == 1 and edges[0].keys and not edges[0].hashed_on_arrival else None
        return SourceLayout(tuple(source.name for source in pipeline.sources), hashed_by)

    def union(self, frames: Sequence[DataFrame]) -> DataFrame:
        """One DataFrame for one streaming query, so that all offsets advance together."""
        if self.hashed_by is not None:
            return frames[0].withColumn(HASH_COLUMN, F.expr(_key_hash(self.hashed_by)))
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


def to_subtasks(
    frame: DataFrame, layout: SourceLayout, edges: Sequence[Edge], parallelism: int, max_parallelism: int
) -> DataFrame:
    """The live rows of a stage, each in the partition of its subtask.

    With one edge the columns are the source's, then the hash, unless the subtask computes it. With several they are the
    number of the edge, one struct per edge, and the hash; a row of a source that has two edges to the stage goes out
    twice.
    """
    hashes = quoted(HASH_COLUMN)
    if layout.hashed_by is not None:
        rows = frame
    elif len(edges) > 1:
        rows = _mixed(frame, layout, edges, max_parallelism)
    elif edges[0].hashed_on_arrival:
        rows, hashes = layout.select(frame, edges[0].producer), _key_hash(edges[0])
    else:
        rows = layout.select(frame, edges[0].producer).withColumn(HASH_COLUMN, _hash(edges[0], max_parallelism))
    return rows.repartitionById(parallelism, F.expr(_subtask(hashes, parallelism, max_parallelism)))


def _subtask(hashes: str, parallelism: int, max_parallelism: int) -> str:
    """SQL text: who owns the key group of a hash. Where `max_parallelism` is a power of two, the usual case, shifts do
    instead of divisions: 2 % of a job that only shuffles, by the median of 80.

    >>> _subtask("h", 3, 128), _subtask("h", 3, 100)
    ('cast(shiftright((h & 127L) * 3L, 7) as int)', 'cast(pmod(h, 100L) * 3L div 100L as int)')
    """
    bits = order_bits(max_parallelism)
    if max_parallelism == 1 << bits:
        return f"cast(shiftright(({hashes} & {max_parallelism - 1}L) * {parallelism}L, {bits}) as int)"
    return f"cast(pmod({hashes}, {max_parallelism}L) * {parallelism}L div {max_parallelism}L as int)"


def _mixed(frame: DataFrame, layout: SourceLayout, edges: Sequence[Edge], max_parallelism: int) -> DataFrame:
    if len(layout.names) == 1:
        frame = frame.select(F.lit(0).alias(SOURCE_COLUMN), F.struct("*").alias("s0"))
    sources = [layout.names.index(edge.producer) for edge in edges]
    ports = F.array(*(F.when(F.col(SOURCE_COLUMN) == source, F.lit(port)) for port, source in enumerate(sources)))
    numbered = frame.select(
        F.explode(F.array_compact(ports)).alias(PORT_COLUMN),
        *(F.col(f"s{source}").alias(f"p{port}") for port, source in enumerate(sources)),
    )
    hashes = F.coalesce(
        *(
            F.when(F.col(PORT_COLUMN) == port, _hash(edge, max_parallelism, f"p{port}."))
            for port, edge in enumerate(edges)
        )
    )
    columns = [F.when(F.col(PORT_COLUMN) == port, F.col(f"p{port}")).alias(f"p{port}") for port in range(len(edges))]
    return numbered.select(PORT_COLUMN, *columns, hashes.alias(HASH_COLUMN))


def _hash(edge: Edge, max_parallelism: int, prefix: str = "") -> Column:
    if edge.keys:
        return F.expr(_key_hash(edge, prefix))
    lanes = ", ".join(f"{lane}L" for lane in spread(max_parallelism))
    number = "spark_partition_id()"
    if edge.rebalanced:
        # The number of the row in its partition is in the lower bits: a task that is computed again gives the same.
        number += f" + shiftright(monotonically_increasing_id() & {(1 << 33) - 1}L, {BLOCK_ROWS.bit_length() - 1})"
    return F.expr(f"element_at(array({lanes}), cast(pmod({number}, {max_parallelism}) as int) + 1)")


def _key_hash(edge: Edge, prefix: str = "") -> str:
    return f"xxhash64({', '.join(prefix + quoted(key) for key in edge.keys)})"


def quoted(name: str) -> str:
    """A column's name in SQL text."""
    return "`" + name.replace("`", "``") + "`"
