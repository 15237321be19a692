"""How reports come back to the driver."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from pyspark.sql import DataFrame

from penstock.protocol.report import SubtaskReport
from penstock.spark.quirks.jobsettings import JobSettings
from penstock.spark.quirks.streamrdd import FETCHED_MAX, fetched

_decoder = msgspec.json.Decoder(SubtaskReport)


class PlannedReports:
    """Collects the reports of micro-batches whose job was planned with the stream. Each subtask makes one."""

    def __init__(self) -> None:
        self._settings = JobSettings()

    def collect(self, frame: DataFrame, subtasks: int) -> list[bytes]:
        if subtasks > FETCHED_MAX:
            return collected(frame)
        self._settings.send(frame.sparkSession)
        return fetched(frame)


def collected(frame: DataFrame) -> list[bytes]:
    """The reports that the job of a DataFrame makes."""
    return [bytes(row[0]) for row in frame.collect()]


def decoded(reports: Iterable[bytes]) -> list[SubtaskReport]:
    return [_decoder.decode(report) for report in reports]
