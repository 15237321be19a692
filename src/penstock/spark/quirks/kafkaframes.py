"""Spark has no Python interface that tells that a DataFrame reads Kafka.

Its analysed plan does: the relation of a streaming source is printed with the name of the source's provider.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

KAFKA, PARTITION, TOPIC = "kafka", "partition", "topic"


def partition_columns(frame: DataFrame) -> tuple[str, ...]:
    """The columns that tell Kafka's partitions apart, as far as a frame that reads Kafka alone has kept them."""
    types = dict(frame.dtypes)
    if types.get(PARTITION) != "int" or not _reads_kafka_alone(frame):
        return ()
    return (TOPIC, PARTITION) if types.get(TOPIC) == "string" else (PARTITION,)


def reads_kafka(frame: DataFrame) -> bool:
    """Whether one of its sources is Kafka."""
    return KAFKA in _sources(frame)


def _reads_kafka_alone(frame: DataFrame) -> bool:
    return set(_sources(frame)) == {KAFKA}


def _sources(frame: DataFrame) -> list[str]:
    try:
        leaves = frame._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001 - there is no other way
        return [str(leaves.apply(number).toString()).lower() for number in range(leaves.size())]
    except (Py4JError, AttributeError):
        return []
