"""The policy of table upkeep, and what upkeep tells about its work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Literal, Protocol, get_args, runtime_checkable

from penstock.errors import ConfigError
from penstock.protocol.manifest import Committable
from penstock.units import Duration, parse_duration

MergeFor = Literal["reads", "writes"]
EVERY_S_MIN = 0.1
ORPHAN_AGE_S_MIN = 3600.0
"""No running epoch or commit is that old. A younger file may still be committed."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How a query keeps its table in shape, in the background.

    `every`: pause between two looks at the table. `manifests`: merge when a snapshot has more of them. `small_files`:
    rewrite that many small files of a partition as one. `merge_for`: what to spare when files of a bucket are merged
    by key, ``"reads"`` or ``"writes"``; None: some of both, or as the table's own options say. `snapshots`,
    `snapshots_max`, `snapshots_for`: how many snapshots stay at least and at most, and for how long; what is None is
    taken from the table's own options, else 10, no limit, and one hour. `orphans_after`: also remove files that
    nothing refers to once they are that old.

    None switches an action off: `manifests`, `small_files`, `orphans_after`; `expire=False` keeps all snapshots.

    >>> Upkeep(snapshots_for="1 d", small_files=None).snapshots_for
    86400.0
    """

    every: Duration = 30.0
    manifests: int | None = 30
    small_files: int | None = 10
    merge_for: MergeFor | None = None
    expire: bool = True
    snapshots: int | None = None
    snapshots_max: int | None = None
    snapshots_for: Duration | None = None
    orphans_after: Duration | None = None

    def __post_init__(self) -> None:
        for option in ("every", "snapshots_for", "orphans_after"):
            value = getattr(self, option)
            if value is not None:
                object.__setattr__(self, option, parse_duration(value, option))
        if self.seconds("every") < EVERY_S_MIN:
            raise _bad("every", self.every, f"at least {EVERY_S_MIN} s")
        for option, least in (("manifests", 2), ("small_files", 2), ("snapshots", 1), ("snapshots_max", 1)):
            value = getattr(self, option)
            if value is not None and (not isinstance(value, int) or value < least):
                raise _bad(option, value, f"a whole number of at least {least}")
        if self.merge_for not in (None, *get_args(MergeFor)):
            raise _bad("merge_for", self.merge_for, "'reads', 'writes' or None")
        if self.orphans_after is not None and self.seconds("orphans_after") < ORPHAN_AGE_S_MIN:
            raise _bad("orphans_after", self.orphans_after, "at least an hour: younger files may be in use")

    def seconds(self, option: str) -> float:
        """A duration as a number; it was parsed when the policy was made."""
        value = getattr(self, option)
        assert isinstance(value, float), f"{option} is not set"
        return value


def _bad(option: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(
        f"upkeep: {option}={value!r}", cause=f"{option} takes {wanted}", next_step="change it", option=option
    )


@dataclass(frozen=True, slots=True)
class UpkeepReport:
    """What one step of upkeep did. `notes` says what it does not do on this table and why, `failures` what failed."""

    manifests_merged: int = 0
    manifests_written: int = 0
    files_compacted: int = 0
    files_written: int = 0
    bytes_compacted: int = 0
    snapshots_expired: int = 0
    files_removed: int = 0
    bytes_removed: int = 0
    orphans_removed: int = 0
    held_by: str | None = None
    notes: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    more: bool = False

    @property
    def did_something(self) -> bool:
        counts = (self.manifests_merged, self.files_compacted, self.snapshots_expired, self.orphans_removed)
        return any(counts)

    def plus(self, other: UpkeepReport) -> UpkeepReport:
        """Both together."""
        merged: dict[str, object] = {}
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if field.name in {"held_by", "more"}:
                merged[field.name] = mine or theirs
            elif field.name in {"notes", "failures"}:
                merged[field.name] = tuple(dict.fromkeys((*mine, *theirs)))
            else:
                merged[field.name] = mine + theirs
        return UpkeepReport(**merged)  # type: ignore[arg-type]


RunTasks = Callable[[Callable[[bytes], bytes], Sequence[bytes]], list[bytes]]
"""Runs a function over payloads in tasks of a cluster, and tells the answers in their order."""


@runtime_checkable
class TaskedKeeper(Protocol):
    """A keeper that can give large work away."""

    def use_tasks(self, run: RunTasks) -> None: ...


class Keeper(Protocol):
    """Keeps one table in shape; used by one thread."""

    @property
    def every_s(self) -> float: ...
    def step(self) -> UpkeepReport:
        """Does what is due, once. `UpkeepReport.more` asks for another call at once.

        Raises: any exception when the table cannot be opened. Later failures are in the report. They leave the table
        readable, and the next step goes on.
        """
        ...

    def stop(self) -> None:
        """Makes a running step end soon; called from another thread."""
        ...


@runtime_checkable
class KeptSink(Protocol):
    """A sink whose table wants upkeep."""

    def open_keeper(self, commit_user: str, pending: Callable[[], Iterable[Committable]]) -> Keeper | None:
        """None when upkeep is switched off. `pending` tells, from any thread, what waits for its commit."""
        ...
