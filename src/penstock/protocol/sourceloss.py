"""Which offsets a source had deleted before they were read, from what was to be read and where the source begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PARTS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class SourceLoss:
    """What one micro-batch did not find; `offsets` is None where that cannot be told. `what` is for people."""

    what: str
    offsets: int | None


def lost_offsets(
    start: Mapping[str, int], end: Mapping[str, int], begins: Mapping[str, int] | None, *, told: bool
) -> SourceLoss | None:
    """The loss of a micro-batch from `start` to `end`; `begins` is where partitions begin now, None if nobody knows.

    `told`: the reader has said that it missed something. A partition that was to be read from and is not in `end` any
    more, or ends before its start, was deleted or made anew: nobody knows what it had.

    >>> lost_offsets({"a-0": 10, "a-1": 5}, {"a-0": 50, "a-1": 9}, {"a-0": 40, "a-1": 0}, told=True)
    SourceLoss(what='a-0 from 10 to 39', offsets=30)
    >>> lost_offsets({"a-0": 10}, {}, {}, told=False)
    SourceLoss(what='a-0 is gone', offsets=None)
    >>> lost_offsets({"a-0": 10}, {"a-0": 20}, {"a-0": 0}, told=False) is None
    True
    """
    gone = [f"{part} is gone" for part in start if part not in end]
    anew = [f"{part} was made anew" for part, first in start.items() if part in end and end[part] < first]
    missed: dict[str, int] = {}
    if told and begins is not None:
        for part, until in end.items():
            missing = min(begins.get(part, 0), until) - start.get(part, 0)
            if missing > 0:
                missed[part] = missing
    if not (gone or anew or told):
        return None
    lines = [f"{part} from {start.get(part, 0)} to {start.get(part, 0) + n - 1}" for part, n in missed.items()]
    lines += gone + anew
    if told and not missed:
        lines.append("some records could not be read")
    shown = ", ".join(lines[:PARTS_SHOWN]) + (f" and {len(lines) - PARTS_SHOWN} more" * (len(lines) > PARTS_SHOWN))
    known = not gone and not anew and bool(missed)
    return SourceLoss(shown, sum(missed.values()) if known else None)
