"""How long a storage that refuses is tried again, and how soon."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_PAUSE_S, PAUSE_S_MAX = 0.1, 5.0


@dataclass(frozen=True, slots=True)
class Outage:
    """Failures in a row, the first of them at `since_s`; nothing is tried before `again_s`."""

    since_s: float
    failures: int
    again_s: float


def failed(outage: Outage | None, now_s: float) -> Outage:
    """One more failure: the pause doubles with each.

    >>> failed(failed(None, 10.0), 20.0)
    Outage(since_s=10.0, failures=2, again_s=20.2)
    """
    failures = 1 if outage is None else outage.failures + 1
    pause_s = min(PAUSE_S_MAX, FIRST_PAUSE_S * 2 ** min(failures - 1, 20))
    return Outage(now_s if outage is None else outage.since_s, failures, now_s + pause_s)


def is_over(outage: Outage, now_s: float, limit_s: float) -> bool:
    """Whether it has lasted too long to try again."""
    return now_s - outage.since_s >= limit_s
