"""The names in a checkpoint folder: the only module that spells them.

Each kind of file has one function (or one `path`) that makes its name, and one `read_…` that takes it apart by one
expression. `read_…` returns None for any other name: a folder may hold files that Penstock did not put there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.protocol.ids import BatchId, CheckpointId, Generation

MANIFESTS = "manifests"
GENERATIONS = "generations"
SEGMENTS = "segments"
STATE = "state"
ATTEMPTS = "attempts"
HUNG = "hung"
PLANS = "plans"
READERS = "readers"
OLDER_EVENTS = "events"
SOURCE = "source"
"""Structured Streaming's own folder; what is in it belongs to Spark."""
EVENTS = "events.jsonl"
RESTORED = "restored.json"
SAVEPOINT_MARKER = "savepoint.partial"
"""In a savepoint that is being written to a storage without rename."""

DATA_FOLDERS = (SEGMENTS, STATE)
"""What manifests name is in these folders."""
TOP_NAMES = frozenset(
    {MANIFESTS, GENERATIONS, SEGMENTS, STATE, ATTEMPTS, HUNG, PLANS, READERS, OLDER_EVENTS, SOURCE, EVENTS, RESTORED}
)
"""What a checkpoint folder may hold directly below it."""
SPARK_OFFSETS, SPARK_COMMITS, SPARK_METADATA = "offsets", "commits", "metadata"
"""What Structured Streaming puts into its folder: into `source/`, or into a plain Spark query's checkpoint."""
SOURCE_OFFSETS, SOURCE_COMMITS = f"{SOURCE}/{SPARK_OFFSETS}", f"{SOURCE}/{SPARK_COMMITS}"
"""Spark's logs of the micro-batches that it began, and of those that it was done with."""
SOURCE_METADATA = f"{SOURCE}/{SPARK_METADATA}"
"""Where Spark writes the id of its streaming query."""
SPARK_SOURCES = "sources"
"""Where Spark keeps more about each source, by its place or name: files that were read, first offsets."""
SPARK_STATE = "state"
"""Where Spark keeps the state of its own operators."""

STUCK = "stuck"
"""The sign of a subtask that hangs; the signs of one that is only slow are numbers."""

_NUMBER = r"(?P<number>[0-9]{10})"
_MANIFEST = re.compile(rf"{MANIFESTS}/{_NUMBER}\.json")
_RETIRED = re.compile(rf"{MANIFESTS}/{_NUMBER}\.retired")
_GENERATION = re.compile(rf"{GENERATIONS}/{_NUMBER}\.json")
_OLDER_EVENTS = re.compile(rf"{OLDER_EVENTS}/{_NUMBER}\.jsonl")
_SUMMED_EVENTS = re.compile(rf"{OLDER_EVENTS}/{_NUMBER}-summed\.jsonl")
_ATTEMPT = r"(?P<checkpoint>[0-9]{10})-g(?P<generation>[0-9]{1,10})-s(?P<subtask>[0-9]{1,10})-a(?P<attempt>[^/]+)"
_DATA_FILE = re.compile(rf"(?P<folder>{SEGMENTS}|{STATE})/(?P<owner>.+)/{_ATTEMPT}-(?P<sequence>[0-9]{{1,10}})\.arrow")
_ANNOUNCEMENT = re.compile(rf"{ATTEMPTS}/(?P<sink>.+)/{_ATTEMPT}\.txt")
_HUNG_SIGN = re.compile(rf"{HUNG}/{_ATTEMPT}-(?P<sign>[0-9A-Za-z_]+)\.json")
_PLAN_FILE = re.compile(
    rf"{PLANS}/(?P<checkpoint>[0-9]{{10}})-g(?P<generation>[0-9]{{1,10}})-(?P<number>[0-9]{{1,10}})\.bin"
)
_LEASE = re.compile(rf"{READERS}/(?P<checkpoint>[0-9]{{10}})-(?P<taken>[0-9]{{10}})-(?P<token>[0-9a-f]{{16}})\.lease")
_SOURCE_ENTRY = re.compile(rf"(?:{SOURCE_OFFSETS}|{SOURCE_COMMITS})/\.?(?P<batch>[0-9]{{1,19}})(?:\.crc)?")
_NAME = r"(?!\.{1,2}(?:/|\Z))[^/\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,255}"
_OWNER = re.compile(_NAME)
_IN_DATA_FOLDER = re.compile(rf"(?:{SEGMENTS}|{STATE})/{_NAME}(?:/{_NAME})*")
_LENGTH_MAX = 1024


def top_of(path: str) -> str:
    """The first part of a path: one of `TOP_NAMES`, or a foreign name."""
    return path.partition("/")[0]


# -- numbered files ----------------------------------------------------------------------------------------------------


def manifest_path(checkpoint: CheckpointId) -> str:
    """
    >>> manifest_path(CheckpointId(42))
    'manifests/0000000042.json'
    """
    return f"{MANIFESTS}/{checkpoint:010d}.json"


def read_manifest_path(path: str) -> CheckpointId | None:
    number = _number(_MANIFEST, path)
    return None if number is None else CheckpointId(number)


def retired_path(checkpoint: CheckpointId) -> str:
    """The file that says: this manifest is no checkpoint any more, it stays only to keep its name taken."""
    return f"{MANIFESTS}/{checkpoint:010d}.retired"


def read_retired_path(path: str) -> CheckpointId | None:
    number = _number(_RETIRED, path)
    return None if number is None else CheckpointId(number)


def generation_path(generation: Generation) -> str:
    return f"{GENERATIONS}/{generation:010d}.json"


def read_generation_path(path: str) -> Generation | None:
    number = _number(_GENERATION, path)
    return None if number is None else Generation(number)


def older_events_path(piece: int) -> str:
    return f"{OLDER_EVENTS}/{piece:010d}.jsonl"


def read_older_events_path(path: str) -> int | None:
    return _number(_OLDER_EVENTS, path)


def summed_events_path(piece: int) -> str:
    """What is left of all pieces up to this one.

    >>> summed_events_path(12)
    'events/0000000012-summed.jsonl'
    """
    return f"{OLDER_EVENTS}/{piece:010d}-summed.jsonl"


def read_summed_events_path(path: str) -> int | None:
    return _number(_SUMMED_EVENTS, path)


def _number(kind: re.Pattern[str], path: str) -> int | None:
    match = kind.fullmatch(path)
    return None if match is None else int(match["number"])


# -- files of attempts -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptId:
    """One try at one subtask. Generation and Spark's task attempt id make it unique, so no other attempt has its
    names."""

    checkpoint: CheckpointId
    """Which the running epoch was to become."""
    generation: Generation
    subtask: int
    attempt: str

    def __str__(self) -> str:
        return f"{self.checkpoint:010d}-g{self.generation}-s{self.subtask}-a{self.attempt}"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of in-flight records or of state; `owner` is an edge or a table of state."""

    folder: str
    owner: str
    by: AttemptId
    sequence: int

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.owner}/{self.by}-{self.sequence}.arrow"


@dataclass(frozen=True, slots=True)
class Announcement:
    """The list of table files that one attempt makes for one sink."""

    sink: str
    by: AttemptId

    @property
    def path(self) -> str:
        return f"{announcements(self.sink)}/{self.by}.txt"


@dataclass(frozen=True, slots=True)
class HungSign:
    """What an attempt that does not get on says about itself: `STUCK`, or how often it was found to be slow."""

    by: AttemptId
    sign: str

    @property
    def path(self) -> str:
        return f"{HUNG}/{self.by}-{self.sign}.json"


@dataclass(frozen=True, slots=True)
class PlanFile:
    """The parts of a plan for the tasks of one running job; `number` counts the jobs of a driver."""

    checkpoint: CheckpointId
    generation: Generation
    number: int

    @property
    def path(self) -> str:
        return f"{PLANS}/{self.checkpoint:010d}-g{self.generation}-{self.number}.bin"


@dataclass(frozen=True, slots=True)
class Lease:
    """A reader's wish that the files of a checkpoint stay for a while. `taken` are seconds since 1970 by its clock."""

    checkpoint: CheckpointId
    taken: int
    token: str

    @property
    def path(self) -> str:
        """
        >>> Lease(CheckpointId(42), 1_800_000_000, "00c0ffee00c0ffee").path
        'readers/0000000042-1800000000-00c0ffee00c0ffee.lease'
        """
        return f"{READERS}/{self.checkpoint:010d}-{self.taken:010d}-{self.token}.lease"


def announcements(sink: str) -> str:
    """The folder in which attempts announce their files for one sink."""
    return f"{ATTEMPTS}/{sink}"


def read_data_file(path: str) -> DataFile | None:
    """
    >>> read_data_file("state/totals/0000000007-g2-s0-a31-0.arrow").by.generation
    2
    """
    match = _DATA_FILE.fullmatch(path)
    return None if match is None else DataFile(match["folder"], match["owner"], _attempt(match), int(match["sequence"]))


def read_data_checkpoint(path: str) -> CheckpointId | None:
    """The checkpoint alone, where many files are looked at."""
    match = _DATA_FILE.fullmatch(path)
    return None if match is None else CheckpointId(int(match["checkpoint"]))


def read_announcement(path: str) -> Announcement | None:
    match = _ANNOUNCEMENT.fullmatch(path)
    return None if match is None else Announcement(match["sink"], _attempt(match))


def read_hung_sign(path: str) -> HungSign | None:
    match = _HUNG_SIGN.fullmatch(path)
    return None if match is None else HungSign(_attempt(match), match["sign"])


def read_plan_file(path: str) -> PlanFile | None:
    match = _PLAN_FILE.fullmatch(path)
    if match is None:
        return None
    return PlanFile(CheckpointId(int(match["checkpoint"])), Generation(int(match["generation"])), int(match["number"]))


def read_lease(path: str) -> Lease | None:
    match = _LEASE.fullmatch(path)
    return None if match is None else Lease(CheckpointId(int(match["checkpoint"])), int(match["taken"]), match["token"])


def _attempt(match: re.Match[str]) -> AttemptId:
    checkpoint, generation = CheckpointId(int(match["checkpoint"])), Generation(int(match["generation"]))
    return AttemptId(checkpoint, generation, int(match["subtask"]), match["attempt"])


def is_owner(name: str) -> bool:
    """Whether a name, read from a manifest, can be that of a folder."""
    return _OWNER.fullmatch(name) is not None


def is_in_data_folder(path: str) -> bool:
    """Whether a path, read from a manifest, stays within the folders that hold what manifests name."""
    return len(path) <= _LENGTH_MAX and _IN_DATA_FOLDER.fullmatch(path) is not None


# -- Spark's files -----------------------------------------------------------------------------------------------------


def offsets_path(batch: BatchId) -> str:
    """Where Spark writes the offsets of a micro-batch before it hands the batch over."""
    return f"{SOURCE_OFFSETS}/{batch}"


def offsets_checksum_path(batch: BatchId) -> str:
    """The checksum that Hadoop keeps beside an entry on a local disk; where there is none, Hadoop checks nothing."""
    return f"{SOURCE_OFFSETS}/.{batch}.crc"


def replaced_path(digest: str) -> str:
    """Where Penstock keeps entries of Spark's offset log that it rewrote, by the digest that a manifest has."""
    return f"{SOURCE}/replaced/{digest}.json"


def read_source_entry(path: str) -> BatchId | None:
    """The micro-batch of an entry of Spark's offset or commit log, or of the checksum that Hadoop keeps beside it."""
    match = _SOURCE_ENTRY.fullmatch(path)
    return None if match is None else BatchId(int(match["batch"]))
