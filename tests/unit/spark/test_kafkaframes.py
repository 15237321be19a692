"""Which frames have a watermark for each partition by default; the plans are models of Spark's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.spark.quirks.kafkaframes import partition_columns

COLUMNS = [("value", "binary"), ("topic", "string"), ("partition", "int")]


def frame(columns: list[tuple[str, str]], *leaves: str) -> Any:
    nodes = [SimpleNamespace(toString=lambda leaf=leaf: leaf) for leaf in leaves]
    found = SimpleNamespace(apply=lambda number: nodes[number], size=lambda: len(nodes))
    plan = SimpleNamespace(analyzed=lambda: SimpleNamespace(collectLeaves=lambda: found))
    return SimpleNamespace(dtypes=columns, _jdf=SimpleNamespace(queryExecution=lambda: plan))


@pytest.mark.parametrize(
    ("columns", "leaves", "found"),
    [
        (COLUMNS, ["kafka"], ("topic", "partition")),
        (COLUMNS[2:], ["kafka"], ("partition",)),
        (COLUMNS[:2], ["kafka"], ()),
        (COLUMNS, ["FileSource[/data/kafka]"], ()),
        (COLUMNS, ["kafka", "rate"], ()),
        ([("partition", "string")], ["kafka"], ()),
    ],
)
def test_only_frames_of_kafka_alone_that_keep_the_partition_have_it(
    columns: list[tuple[str, str]], leaves: list[str], found: tuple[str, ...]
) -> None:
    assert partition_columns(frame(columns, *leaves)) == found
