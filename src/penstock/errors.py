"""Every error a user can meet: a code, what was seen, the likely cause and the next step.

This file is the catalogue; docs/reference/errors.md is generated from it (``python scripts/errors_page.py``).
Errors travel from a subtask to the driver as an `ErrorReport`, never as a pickled exception.
"""

from __future__ import annotations

import errno
from typing import Any, ClassVar

from penstock.protocol.layout import EVENTS
from penstock.protocol.report import ErrorReport
from penstock.text import printable, redacted

REPORT_IT = f"start again from the last checkpoint, and report this message with {EVENTS}"
"""The next step after a fault of Penstock itself."""


class PenstockError(Exception):
    """Root of all errors that Penstock raises."""

    code: ClassVar[str] = "PEN-000"
    title: ClassVar[str] = "Penstock failed"

    def __init__(self, seen: str, *, cause: str = "", next_step: str = "", **fields: Any) -> None:
        # Messages quote files, URLs and other libraries: secrets and terminal commands are taken out here.
        self.seen, self.cause, self.next_step = redacted(seen), redacted(cause), redacted(next_step)
        self.fields = {name: redacted(str(value)) for name, value in fields.items()}
        parts = [f"{self.title}: {self.seen}"]
        if cause:
            parts.append(f"  likely cause: {self.cause}")
        if next_step:
            parts.append(f"  next step:    {self.next_step}")
        super().__init__(printable(f"[{self.code}] " + "\n".join(parts), lines=True))

    def to_report(self) -> ErrorReport:
        return ErrorReport(self.code, self.seen, self.cause, self.next_step, self.fields)

    @staticmethod
    def from_report(report: ErrorReport) -> PenstockError:
        kind = catalogue().get(report.code, PenstockError)
        return kind(report.seen, cause=report.cause, next_step=report.next_step, **report.fields)


class ConfigError(PenstockError):
    """An option is unknown, or its value cannot be understood."""

    code, title = "PEN-001", "Bad option"


class PipelineError(PenstockError):
    """The pipeline itself cannot work: a missing column, a key type that has no order or hash, a name used twice."""

    code, title = "PEN-002", "Bad pipeline"


class SparkSetupError(PenstockError):
    """The Spark or Java that was found cannot run Penstock."""

    code, title = "PEN-003", "Spark cannot run"


class CheckpointMismatch(PenstockError):
    """The checkpoint belongs to a pipeline that does not fit this one."""

    code, title = "PEN-010", "The pipeline does not fit its checkpoint"


class FormatTooNew(PenstockError):
    """The checkpoint was written by a newer Penstock."""

    code, title = "PEN-011", "The checkpoint has a newer format"


class CorruptFile(PenstockError):
    """A file's bytes are not those that were written."""

    code, title = "PEN-012", "Corrupt file"


class UnsafeName(CorruptFile):
    """A name in a file, or a link in a folder, leads out of the folder to which it belongs; nothing was touched."""

    code, title = "PEN-018", "A name leads out of its folder"


class MissingFile(PenstockError):
    """A file that a checkpoint names is gone."""

    code, title = "PEN-013", "Missing file"


class NoSuchCheckpoint(PenstockError):
    """The checkpoint to restore does not exist."""

    code, title = "PEN-014", "No such checkpoint"


class RestoreRefused(PenstockError):
    """A checkpoint cannot be restored from elsewhere into this folder, or `restore` lacks an option that it needs."""

    code, title = "PEN-015", "The restore is refused"


class SavepointRefused(PenstockError):
    """A savepoint cannot be written there."""

    code, title = "PEN-016", "The savepoint is refused"


class NotACheckpoint(PenstockError):
    """The folder given as `checkpoint=` holds something else: the checkpoint of a plain Spark query, or other files.
    Nothing was written to it."""

    code, title = "PEN-017", "The folder holds something else"


class ForkRefused(PenstockError):
    """A fork would write to a table of the original, or the original went on faster than its files could be brought.
    Nothing was changed."""

    code, title = "PEN-019", "The fork is refused"


class MigrationFailed(PenstockError):
    """A function of `migrate=` cannot make new state of the old: nothing was changed."""

    code, title = "PEN-036", "State cannot be migrated"


class Fenced(PenstockError):
    """A newer driver has taken over this checkpoint; this one stops."""

    code, title = "PEN-020", "Another driver took over"


class SourceMismatch(PenstockError):
    """Structured Streaming's own checkpoint does not fit ours."""

    code, title = "PEN-021", "The source's position does not fit the checkpoint"


class ConservationError(PenstockError):
    """Records were lost or doubled inside an epoch; the checkpoint was not published."""

    code, title = "PEN-022", "Records do not add up"


class LostReport(PenstockError):
    """A Spark job succeeded, but a subtask gave no report, or more than one."""

    code, title = "PEN-023", "Reports of subtasks are missing"


class StopTimeout(PenstockError):
    """The query did not end within the `timeout` that `stop` was given; it still ends as soon as it can."""

    code, title = "PEN-024", "The query has not ended yet"


class OtherProcess(PenstockError):
    """A method of a query was called in a process that does not run it: a forked child of the driver."""

    code, title = "PEN-025", "The query runs in another process"


class Overtaken(PenstockError):
    """A driver that started found the checkpoint folder changed by other drivers each time it was about to take over,
    and gave up. It leaves no checkpoint of its own."""

    code, title = "PEN-026", "Other drivers were faster again and again"


class SourceLostRecords(PenstockError):
    """A source has deleted records that the query did not read: Kafka's retention, a topic that was made anew."""

    code, title = "PEN-027", "The source has lost records"


class QueryEnded(PenstockError):
    """Something was asked of a query that has ended."""

    code, title = "PEN-029", "The query has ended"


class OperatorFailed(PenstockError):
    """User code raised an exception on a record."""

    code, title = "PEN-030", "An operator failed"


class SubtaskFailed(PenstockError):
    """A subtask met an error that is not the operator's: a file, a disk, a table writer."""

    code, title = "PEN-031", "A subtask failed"


class StorageFailed(PenstockError):
    """The checkpoint's or the table's storage refused an operation: full, read-only, unreachable."""

    code, title = "PEN-032", "Storage failed"


class StageFailed(PenstockError):
    """A Spark job failed more often than epochs are retried, Structured Streaming stopped, or the JVM is gone; the
    message says which."""

    code, title = "PEN-033", "A Spark job failed"


class TooManyErrors(PenstockError):
    """An operator failed on a larger share of its records than `max_error_rate` allows; nothing of the epoch was
    published."""

    code, title = "PEN-034", "Too many records fail"


class SubtaskHung(PenstockError):
    """A subtask did not finish a step within `epoch_timeout`, in as many tries as `epoch_retries` allows; nothing of
    the epoch was published."""

    code, title = "PEN-035", "A subtask hangs"


class TableMismatch(PenstockError):
    """The table's columns do not fit the stream's."""

    code, title = "PEN-040", "The table does not fit the stream"


class TableRefused(PenstockError):
    """This kind of table cannot be written exactly once."""

    code, title = "PEN-041", "The table cannot be written exactly once"


class TablePositionMismatch(PenstockError):
    """Table and checkpoint disagree about what was committed."""

    code, title = "PEN-042", "Table and checkpoint disagree"


class CommitFailed(PenstockError):
    """A commit failed for good."""

    code, title = "PEN-043", "Commit failed"


class ListenerFailed(PenstockError):
    """A commit listener raised an exception again and again; the commit itself is in the table."""

    code, title = "PEN-044", "A commit listener failed"


_LASTING = {str(number) for number in (errno.EACCES, errno.EPERM, errno.EROFS)}


def may_pass(error: StorageFailed) -> bool:
    """Whether the same operation may succeed later by itself; an operation that lacks a permission will not."""
    return error.fields.get("errno") not in _LASTING


def catalogue() -> dict[str, type[PenstockError]]:
    """Every error class by its code."""
    found: dict[str, type[PenstockError]] = {}
    pending = [PenstockError]
    while pending:
        kind = pending.pop()
        found[kind.code] = kind
        pending.extend(kind.__subclasses__())
    return dict(sorted(found.items()))


def storage_failed(path: str, error: OSError) -> PenstockError:
    """The `StorageFailed` (or `MissingFile`) that tells what an `OSError` on `path` means."""
    if error.errno == errno.ENOENT:
        return MissingFile(
            f"{path} does not exist",
            cause="the file or its folder was deleted or moved while a checkpoint still needed it",
            next_step="restore the folder from a copy, or restore an older checkpoint (restore=N)",
            path=path,
        )
    advice = {
        errno.ENOSPC: ("the disk is full", "free space, then start again: nothing published was lost"),
        errno.EDQUOT: ("the disk quota is used up", "raise the quota, then start again: nothing published was lost"),
        errno.EACCES: ("the folder is not readable or writable for this user", "fix its permissions"),
        errno.EPERM: ("the folder is not writable for this user", "fix its permissions"),
        errno.EROFS: ("the file system is read-only", "use a writable location"),
        errno.ENOTDIR: ("a part of this path is a file, not a folder", "give the path of a folder, or of a new one"),
    }
    cause, next_step = advice.get(error.errno or 0, ("the storage refused the operation", "check the storage"))
    return StorageFailed(
        f"{path}: {error.strerror or error}", cause=cause, next_step=next_step, path=path, errno=error.errno
    )


def not_text(error: UnicodeError) -> SubtaskFailed:
    """The error for text that is not UTF-8: another attempt would fail on the same rows."""
    return SubtaskFailed(
        f"{type(error).__name__}: {error}",
        cause="a string column holds bytes that are not UTF-8",
        next_step="repair them before the first operator, for example with make_valid_utf8 in select()",
    )
