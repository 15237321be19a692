"""What the engine needs of its input; Structured Streaming implements it, and so does the test runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from penstock.engine.cluster import OfferedBatch
from penstock.engine.naming import Naming
from penstock.errors import StageFailed
from penstock.graph.stages import Stage
from penstock.observe.events import SourceProgress
from penstock.protocol.ids import BatchId
from penstock.protocol.silence import SourceState
from penstock.protocol.sourceloss import SourceLoss


class SourceContended(Exception):
    """Two streaming queries wrote the same entry of the source's log; the other one was first, this one has ended.

    A driver that was replaced may have had one write under way: the next start goes on from that entry.
    """


class SourceCancelled(Exception):
    """A job that was reading the source was cancelled, by Ctrl-C or in Spark's UI."""


class SourceStopped(Exception):
    """The user stopped the reading of the source, with micro-batches left or more to come: a program that stops all
    streaming queries of its session does."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What will be done with micro-batches, so that a feed may plan it ahead; `parallelism` is what is wanted now."""

    stages: tuple[Stage, ...]
    max_parallelism: int
    parallelism: Callable[[], Mapping[str, int]]
    source_names: Mapping[str, tuple[str, ...]] | None = None
    """By source, the names under which Spark's log is to have what it reads; None: their places."""


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
        with `SourceContended`, `SourceCancelled` or `SourceStopped` where that is the reason."""
        ...

    def stop(self) -> None: ...

    def state(self) -> SourceState | None:
        """What the source has to answer before there can be a micro-batch; None after its end."""
        ...

    @property
    def naming(self) -> Naming:
        """How it knows sources, and so whether a pipeline may read others than before."""
        ...

    def remembers(self, batch_id: BatchId, offsets_digest: str | None) -> bool:
        """Whether it could go on behind `batch_id`, with which a checkpoint ends."""
        ...

    def rewind(self, batch_id: BatchId | None) -> None:
        """Forgets everything after `batch_id`, for a checkpoint that was restored on purpose."""
        ...


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """How far one source was read; offsets in the source's own words. `behind`: offsets that were not read yet."""

    source: str
    rows_per_s: float | None
    processed_per_s: float | None
    end: str
    latest: str
    behind: int | None


@runtime_checkable
class TellsProgress(Protocol):
    """A feed that knows how far its sources were read."""

    def progress(self) -> list[SourceFigures]: ...


@runtime_checkable
class TellsLosses(Protocol):
    """A feed that notices records which the source deleted before they were read."""

    def tell_losses(self, tell: Callable[[SourceLoss], None]) -> None:
        """From now on `tell` is called for each, in any thread."""
        ...


@runtime_checkable
class Replans(Protocol):
    """A feed that plans the work on micro-batches ahead, and can plan it anew while it reads."""

    def replan(self) -> None:
        """Another parallelism is wanted than before, from the next micro-batch on; returns at once."""
        ...


def source_progress(feed: Feed) -> tuple[SourceProgress, ...]:
    """How far each source was read, as events tell it; empty where the feed does not know."""
    if not isinstance(feed, TellsProgress):
        return ()
    return tuple(
        SourceProgress(
            source=one.source,
            rows_per_s=one.rows_per_s,
            processed_per_s=one.processed_per_s,
            end=one.end,
            latest=one.latest,
            behind=one.behind,
        )
        for one in feed.progress()
    )


def source_stopped(error: BaseException) -> StageFailed:
    """The error of a query whose source ended for good."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    said = f"Structured Streaming stopped: {lines[0] if lines else type(error).__name__}"
    if isinstance(error, SourceContended):
        return StageFailed(
            said,
            cause="another streaming query, not one of Penstock, writes to the folder source/ of this checkpoint",
            next_step="stop that query; nothing published was lost, start again to go on",
        )
    if isinstance(error, SourceCancelled):
        return StageFailed(
            said,
            cause="Ctrl-C, Spark's UI or the program itself cancelled Spark's jobs again and again",
            next_step="nothing published was lost, start again to go on",
        )
    return StageFailed(
        said,
        cause="the source failed, or the streaming query was stopped from outside",
        next_step="look at the Spark log; nothing published was lost, start again to go on",
    )
