"""What the engine needs of its input; Structured Streaming implements it, and so does the test runner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.engine.cluster import OfferedBatch


class Feed(Protocol):
    """Offers micro-batches, one at a time, each with an id one higher than the last."""

    def start(
        self,
        offer: Callable[[OfferedBatch], None],
        on_end: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Begins to offer; exactly one of `on_end` and `on_failure` is called at the end."""
        ...

    def stop(self) -> None: ...

    def remembers(self, batch_id: int, offsets_digest: str | None) -> bool:
        """Whether it could go on behind `batch_id`, with which a checkpoint ends."""
        ...

    def rewind(self, batch_id: int | None) -> None:
        """Forgets everything after `batch_id`, for a checkpoint that was restored on purpose."""
        ...
