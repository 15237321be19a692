"""What the engine needs of its input; Structured Streaming implements it, and so does the test runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from penstock.engine.cluster import OfferedBatch
from penstock.graph import Stage


class SourceContended(Exception):
    """Two streaming queries wrote the same entry of the source's log; the other one was first, this one has ended.

    A driver that was replaced may have had one write under way: whoever starts again goes on from that entry.
    """


@dataclass(frozen=True, slots=True)
class Demand:
    """What will be done with micro-batches, so that a feed may plan it ahead; `parallelism` is what is wanted now."""

    stages: tuple[Stage, ...]
    max_parallelism: int
    parallelism: Callable[[], Mapping[str, int]]


class Feed(Protocol):
    """Offers micro-batches, one at a time, each with an id one higher than the last."""

    def start(
        self,
        offer: Callable[[OfferedBatch], None],
        on_end: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        demand: Demand,
    ) -> None:
        """Begins to offer, also again after a failure; exactly one of `on_end` and `on_failure` is called at the end,
        with `SourceContended` where that is the reason."""
        ...

    def stop(self) -> None: ...

    def remembers(self, batch_id: int, offsets_digest: str | None) -> bool:
        """Whether it could go on behind `batch_id`, with which a checkpoint ends."""
        ...

    def rewind(self, batch_id: int | None) -> None:
        """Forgets everything after `batch_id`, for a checkpoint that was restored on purpose."""
        ...
