"""Spark's Kafka source tells lost records in the log of an executor alone, once `failOnDataLoss` is off.

Its scan counts how often that happened and how many offsets it went past, among the metrics of the executed plan. Which
offsets were lost is then asked from the reader that the source itself uses, in the driver's JVM. Where a plan looks
different, nothing is told.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError

from penstock.protocol.sourceloss import SourceLoss, lost_offsets

METRIC, SKIPPED, STREAM = "dataLoss", "offsetOutOfRange", "KafkaMicroBatchStream"


def losses_of(plan: Any) -> list[SourceLoss]:
    """What the Kafka sources of an executed micro-batch could not find."""
    found: list[SourceLoss] = []
    with suppress(Py4JError, AttributeError, TypeError, ValueError):
        leaves = plan.collectLeaves()
        for number in range(leaves.size()):
            loss = _loss(leaves.apply(number))
            if loss is not None:
                found.append(loss)
    return found


def _loss(scan: Any) -> SourceLoss | None:
    metrics = scan.metrics()
    if not metrics.contains(METRIC):
        return None
    reader = scan.stream()
    if not str(reader.getClass().getName()).endswith(STREAM):
        return None
    told = int(metrics.apply(METRIC).value()) > 0
    skipped = int(metrics.apply(SKIPPED).value()) if metrics.contains(SKIPPED) else 0
    start, end = _offsets(scan.start()), _offsets(scan.end())
    return lost_offsets(start, end, _begins(reader) if told else {}, told=told, skipped=skipped)


def _offsets(offset: Any) -> dict[str, int]:
    """From ``{"topic": {"0": 12}}``."""
    topics = json.loads(offset.json())
    return {f"{topic}-{part}": int(at) for topic, parts in topics.items() for part, at in parts.items()}


def _begins(reader: Any) -> dict[str, int] | None:
    try:
        pairs = reader.kafkaOffsetReader().fetchEarliestOffsets().toSeq()
        each = (pairs.apply(number) for number in range(pairs.size()))
        return {str(pair._1().toString()): int(pair._2()) for pair in each}  # noqa: SLF001 - of Scala
    except (Py4JError, AttributeError):
        return None
