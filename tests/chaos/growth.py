"""Whether something grows: the slope of a figure over the last two thirds of a soak, against what it may grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

JUDGED_SHARE = 2 / 3
"""Caches, pools and logs of bounded length fill up in the first third."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A figure may grow by `share` of its level or by `floor`, whichever is more, over the judged part."""

    share: float
    floor: float
    unit: str
    why: str
    """What grows up to there without being a leak."""


@dataclass(frozen=True, slots=True)
class Growth:
    """How a figure moved."""

    level: float
    grown: float
    allowed: float

    @property
    def is_flat(self) -> bool:
        return self.grown <= self.allowed


def growth(at_s: Sequence[float], values: Sequence[float], limit: Limit) -> Growth:
    """By the median of the slopes between all pairs of samples (Theil and Sen): single peaks do not count."""
    times, figures = np.asarray(at_s, float), np.asarray(values, float)
    judged = times >= times[-1] - JUDGED_SHARE * (times[-1] - times[0])
    times, figures = times[judged], figures[judged]
    first, second = np.triu_indices(len(times), 1)
    slope = float(np.median((figures[second] - figures[first]) / (times[second] - times[first])))
    level = float(np.median(figures))
    return Growth(level, slope * float(times[-1] - times[0]), max(limit.floor, limit.share * level))
