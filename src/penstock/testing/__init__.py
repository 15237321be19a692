"""Testing pipelines without Spark: the same engine, subtasks and files, run in this process."""

from penstock.testing.harness import Harness
from penstock.testing.inline import stream_of

__all__ = ["Harness", "stream_of"]
