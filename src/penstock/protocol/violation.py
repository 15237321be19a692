"""What stops an epoch before it is published."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """A fact about an epoch that cannot be if every record was handled once."""

    where: str
    what: str
