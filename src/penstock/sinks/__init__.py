"""Where results go: writers run in subtasks, the committer runs in the driver.

The names below are what a sink of your own is made of; the guide *A sink of your own* has a whole one.
"""

from penstock.errors import Fenced, MissingFile, TableMismatch, TablePositionMismatch, TableRefused
from penstock.protocol.commit import Remembered
from penstock.protocol.ids import CheckpointId, Generation
from penstock.sinks.base import (
    CommitPermit,
    CommitReceipt,
    Committable,
    Committer,
    CommitterDefaults,
    Routing,
    Sink,
    SinkDefaults,
    TableHistory,
    TableMark,
    Writer,
    WriterContext,
    files_missing,
)

__all__ = [
    "CheckpointId",
    "CommitPermit",
    "CommitReceipt",
    "Committable",
    "Committer",
    "CommitterDefaults",
    "Fenced",
    "Generation",
    "MissingFile",
    "Remembered",
    "Routing",
    "Sink",
    "SinkDefaults",
    "TableHistory",
    "TableMark",
    "TableMismatch",
    "TablePositionMismatch",
    "TableRefused",
    "Writer",
    "WriterContext",
    "files_missing",
]
