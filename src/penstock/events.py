"""What happens to a query, as objects: `start(on_event=…)` hands each to your function.

>>> import penstock as pen
>>> def show(event):
...     if isinstance(event, pen.events.EpochPublished):
...         print(pen.events.format_epoch(event))

`Event` is the union of all of them. The folder of the checkpoint has the same events as JSON, in ``events.jsonl``.
Later releases may add events and fields.
"""

from penstock.observe.events import (
    Alive,
    CommitRetried,
    CommitSlow,
    CommitsSummed,
    Committed,
    DriverProcess,
    EpochFailed,
    EpochPublished,
    EpochsSummed,
    Event,
    InFlightDropped,
    LongerEpoch,
    QueryStarted,
    QueryStopped,
    Rescaled,
    SavepointFailed,
    SavepointTaken,
    SourceLost,
    SourceProgress,
    SourceSlow,
    StartRefused,
    StateMigrated,
    StorageRetried,
    TableKept,
    UpkeepFailed,
)
from penstock.observe.figures import BytesWritten, EdgeFigures, StageFigures, SubtaskFigures
from penstock.observe.progress import format_commit, format_epoch
from penstock.observe.spans import Spans

__all__ = [
    "Event",
    "QueryStarted",
    "QueryStopped",
    "StartRefused",
    "DriverProcess",
    "Alive",
    "SourceProgress",
    "EpochPublished",
    "EpochFailed",
    "EpochsSummed",
    "BytesWritten",
    "StageFigures",
    "EdgeFigures",
    "SubtaskFigures",
    "Committed",
    "CommitsSummed",
    "CommitRetried",
    "CommitSlow",
    "SourceSlow",
    "SourceLost",
    "StorageRetried",
    "Rescaled",
    "InFlightDropped",
    "StateMigrated",
    "LongerEpoch",
    "SavepointTaken",
    "SavepointFailed",
    "TableKept",
    "UpkeepFailed",
    "format_epoch",
    "format_commit",
    "Spans",
]
