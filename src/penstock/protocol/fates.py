"""What can become of a part of a checkpoint in a changed pipeline: a closed set, and the line that tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, assert_never

PartKind: TypeAlias = Literal["source", "operator", "state", "rows in flight", "sink", "query"]


@dataclass(frozen=True, slots=True)
class Carried:
    """It goes on as it was."""


@dataclass(frozen=True, slots=True)
class New:
    """The checkpoint does not have it: it begins empty."""

    how: str = ""


@dataclass(frozen=True, slots=True)
class Renamed:
    """It goes on under another name."""

    old: str


@dataclass(frozen=True, slots=True)
class Converted:
    """It goes on, in another form."""

    how: str


@dataclass(frozen=True, slots=True)
class Forgotten:
    """It ends here. Nothing of it is lost that the user did not name."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The query does not start; `option` is what would allow it."""

    why: str
    option: str


Fate: TypeAlias = Carried | New | Renamed | Converted | Forgotten | Refused


@dataclass(frozen=True, slots=True)
class PartFate:
    """One line of the table that a dry run prints."""

    kind: PartKind
    name: str
    fate: Fate
    rows: int = 0
    bytes: int = 0

    @property
    def word(self) -> str:
        return type(self.fate).__name__.lower()

    @property
    def detail(self) -> str:
        match self.fate:
            case Carried():
                return ""
            case New(how) | Converted(how):
                return how
            case Forgotten(why):
                return why
            case Renamed(old):
                return f"was {old}"
            case Refused(why, option):
                return f"{why}; {option}" if option else why
            case _:
                assert_never(self.fate)

    @property
    def refused(self) -> bool:
        return isinstance(self.fate, Refused)
