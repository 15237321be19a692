"""The watermark of each key group on one edge, as its reader goes through the segments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.reads import ReadSpan
from penstock.records import NO_WATERMARK


class ChannelWatermarks:
    """A key group has the lowest watermark of its unread spans, usually that of the oldest one. Once all spans are
    read, it has the watermark of the edge."""

    def __init__(
        self, groups: KeyGroupRange, reads: Sequence[ReadSpan], edge: int | None, *, broadcast: bool = False
    ) -> None:
        self.now: npt.NDArray[np.int64] = np.full(len(groups), number(edge), np.int64)
        # What a key group gets when a span is done: the watermark before that span was added.
        self._after: list[tuple[slice, npt.NDArray[np.int64]]] = []
        for read in reversed(reads):
            mine = slice(None) if broadcast else slice(read.lo - groups.lo, read.hi - groups.lo)
            self._after.append((mine, self.now[mine].copy()))
            self.now[mine] = np.minimum(self.now[mine], number(read.watermark))
        self._after.reverse()
        self._done = 0

    def passed(self, spans: int) -> None:
        """The first `spans` spans are consumed."""
        while self._done < spans:
            groups, watermarks = self._after[self._done]
            self.now[groups] = watermarks
            self._done += 1


def number(watermark: int | None) -> int:
    return NO_WATERMARK if watermark is None else watermark
