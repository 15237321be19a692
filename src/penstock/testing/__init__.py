"""Testing pipelines and sinks without Spark: the same engine, subtasks and files, run in this process."""

from penstock.testing.harness import Harness
from penstock.testing.inline import stream_of
from penstock.testing.sinks.check import BrokenPromise, SinkBroken, SinkReport, check_sink

__all__ = ["BrokenPromise", "Harness", "SinkBroken", "SinkReport", "check_sink", "stream_of"]
