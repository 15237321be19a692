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
    start: Mapping[str, int],
    end: Mapping[str, int],
    begins: Mapping[str, int] | None,
    *,
    told: bool,
    skipped: int = 0,
) -> SourceLoss | None:
    """The loss of a micro-batch from `start` to `end`; `begins` is where partitions begin now, None if nobody knows.

    `told`: the reader has said that it missed something; `skipped` is how many offsets it went past, 0 if it did not
    count. A partition may have lost more since it was read, and a micro-batch that was read twice was counted twice:
    of the two figures the smaller one counts. A partition that was to be read from and is not in `end` any more, or
    ends before its start, was deleted or made anew: nobody knows what it had.

    >>> lost_offsets({"a-0": 10, "a-1": 5}, {"a-0": 50, "a-1": 9}, {"a-0": 40, "a-1": 0}, told=True)
    SourceLoss(what='a-0 from 10 to 39', offsets=30)
    >>> lost_offsets({"a-0": 10}, {"a-0": 50}, {"a-0": 400}, told=True, skipped=25)
    SourceLoss(what='25 offsets of: a-0 from 10 to 49', offsets=25)
    >>> lost_offsets({"a-0": 10}, {}, {}, told=False)
    SourceLoss(what='a-0 is gone', offsets=None)
    >>> lost_offsets({"a-0": 10}, {"a-0": 20}, {"a-0": 0}, told=False) is None
    True
    """
    gone = [f"{part} is gone" for part in start if part not in end]
    anew = [f"{part} was made anew" for part, first in start.items() if part in end and end[part] < first]
    if not (gone or anew or told):
        return None
    missed = _deleted(start, end, begins or {}) if told else {}
    count = min(filter(None, (sum(missed.values()), skipped)), default=0)
    lines = [f"{part} from {start.get(part, 0)} to {start.get(part, 0) + n - 1}" for part, n in missed.items()]
    lines += gone + anew
    if told and not missed:
        lines.append("some records could not be read")
    shown = ", ".join(lines[:PARTS_SHOWN]) + (f" and {len(lines) - PARTS_SHOWN} more" * (len(lines) > PARTS_SHOWN))
    if missed and count < sum(missed.values()):
        shown = f"{count} offsets of: {shown}"
    return SourceLoss(shown, count if count and not gone and not anew else None)


def _deleted(start: Mapping[str, int], end: Mapping[str, int], begins: Mapping[str, int]) -> dict[str, int]:
    """How many offsets of each partition's range lie before the place where the partition begins now."""
    missing = {part: min(begins.get(part, 0), until) - start.get(part, 0) for part, until in end.items()}
    return {part: n for part, n in missing.items() if n > 0}
