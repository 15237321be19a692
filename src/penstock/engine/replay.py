"""A feed that offers what another query has read, and nothing more: so that two programs get the same rows.

Spark runs a micro-batch again that is in its offset log and not in its commit log. So the rows that the other query
read in several micro-batches come here as one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from penstock.engine.cluster import OfferedBatch
from penstock.engine.feed import Demand, Feed
from penstock.engine.naming import Naming
from penstock.errors import MissingFile
from penstock.protocol.ids import BatchId
from penstock.protocol.layout import SOURCE, offsets_path, read_source_entry
from penstock.protocol.silence import SourceState
from penstock.store.base import AlreadyExists, Store


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a query has read since a checkpoint: `first` is its first micro-batch after that, `last` the last one."""

    store: Store
    first: BatchId
    last: BatchId

    @property
    def anything(self) -> bool:
        return self.last >= self.first

    def put(self, target: Store) -> None:
        """Makes all of it the one micro-batch that comes next in another folder."""
        for entry in self.store.list(SOURCE):
            # What sources remember themselves, such as the files behind an offset.
            if read_source_entry(entry.path) is None and entry.path.count("/") > 1:
                with suppress(AlreadyExists, MissingFile):
                    target.adopt(entry.path, self.store, link=False)
        with suppress(AlreadyExists):
            target.create(offsets_path(self.first), self.store.read(offsets_path(self.last)))


class NoMore(Exception):
    """The micro-batch on offer is not one that was recorded."""


class ReplayFeed:
    """Another feed, up to what was recorded."""

    def __init__(self, feed: Feed, store: Store, recorded: Recorded) -> None:
        self._feed, self._store, self._recorded = feed, store, recorded
        self._ended = False

    def start(
        self,
        offer: Callable[[OfferedBatch], None],
        on_end: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        demand: Demand,
    ) -> None:
        if not self._recorded.anything:
            on_end()
            return
        self._recorded.put(self._store)

        def end() -> None:
            if not self._ended:
                self._ended = True
                on_end()

        def offered(batch: OfferedBatch) -> None:
            if batch.batch_id > self._recorded.first:
                end()
                raise NoMore
            offer(batch)

        def failed(error: BaseException) -> None:
            if not self._ended:
                on_failure(error)

        self._feed.start(offered, end, failed, demand)

    def stop(self) -> None:
        self._feed.stop()

    def state(self) -> SourceState | None:
        return None if self._ended else self._feed.state()

    @property
    def naming(self) -> Naming:
        return self._feed.naming

    def remembers(self, batch_id: BatchId, offsets_digest: str | None) -> bool:
        return self._feed.remembers(batch_id, offsets_digest)

    def rewind(self, batch_id: BatchId | None) -> None:
        self._feed.rewind(batch_id)
