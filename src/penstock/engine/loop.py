"""The epoch loop: one background step after another asks `protocol.epoch.decide` what to do, and does it.

Structured Streaming's handler offers micro-batches and waits; the loop runs drain epochs by itself while nothing is
offered. A batch that was offered but not ingested is never reported as done: the handler raises instead, so Spark
offers it again after a restart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from penstock.config import Config
from penstock.engine.background import AT_ONCE, Background, Pause, Spawn
from penstock.engine.cluster import JobFailed, OfferedBatch
from penstock.engine.commits import CommitCoordinator
from penstock.engine.epochs import EpochResult, EpochRunner
from penstock.errors import Fenced, PenstockError, SourceMismatch, StageFailed
from penstock.protocol.epoch import Drain, Facts, Ingest, Stop, Stopping, Wait, decide
from penstock.protocol.recover import RefuseBatch, SkipBatch, TakeBatch, judge_batch

LEADER_CHECK_S = 5.0
"""Whoever publishes finds out that it was replaced. One that only waits must look, or it would take the newer
driver's micro-batches away from it."""


class NotIngested(Exception):
    """Ends the handler of a micro-batch that the loop did not take, because the query stops."""


@dataclass(slots=True)
class Offer:
    """A micro-batch on offer; `done` once it is part of a published checkpoint."""

    batch: OfferedBatch
    done: bool = False


@dataclass(frozen=True, slots=True)
class LoopEvents:
    """What the loop tells about itself."""

    published: Callable[[EpochResult], None]
    failed: Callable[[int, Exception, int], None]
    waiting: Callable[[str], None]


class EpochLoop:
    """Runs epochs until it is asked to stop, its input ends, or something fails for good."""

    def __init__(
        self,
        runner: EpochRunner,
        coordinator: CommitCoordinator,
        config: Config,
        events: LoopEvents,
        spawn: Spawn,
    ) -> None:
        self._runner, self._coordinator, self._config, self._events = runner, coordinator, config, events
        self._changed = threading.Condition()
        self._offer: Offer | None = None
        self._stopping = Stopping.NO
        self._source_ended = False
        self._wanted_parallelism: dict[str, int] = {}
        self._waiting_for: str | None = None
        self._leader_check_at = runner.clock() + LEADER_CHECK_S
        self._ended = False
        self.error: PenstockError | None = None
        self._background: Background = spawn("penstock-epochs", self.step, self._die)

    # -- called from other threads -------------------------------------------------------------------------------

    def start(self) -> None:
        self._background.start()

    def offer(self, batch: OfferedBatch) -> None:
        """Hands a micro-batch over and returns when it is part of a published checkpoint.

        Raises: `SourceMismatch`, `Fenced`; `NotIngested` when the query stops first.
        """
        offer = self.propose(batch)
        with self._changed:
            while not offer.done and not self.ended:
                self._changed.wait(1.0)
        self.settle(offer)

    def propose(self, batch: OfferedBatch) -> Offer:
        """Puts a micro-batch on offer and returns at once; a replay is done already.

        Raises: `SourceMismatch`, `Fenced`.
        """
        match judge_batch(self._runner.manifest, batch.batch_id, batch.offsets_digest, batch.query_id):
            case SkipBatch():
                return Offer(batch, done=True)
            case RefuseBatch(why):
                error = self.reason(_source_mismatch(self._runner, batch, why))
                self.fail(error)
                raise error
            case TakeBatch():
                offer = Offer(batch)
                with self._changed:
                    self._offer = offer
                self.wake()
                return offer

    def settle(self, offer: Offer) -> None:
        """Raises: `NotIngested` for a micro-batch that is not part of a published checkpoint."""
        if not offer.done:
            raise NotIngested(f"micro-batch {offer.batch.batch_id} was not ingested: the query stopped")

    def wake(self) -> None:
        """Something changed: whoever waits looks again."""
        with self._changed:
            self._changed.notify_all()
        self._background.wake()

    def end_of_source(self) -> None:
        with self._changed:
            self._source_ended = True
        self.wake()

    def request_stop(self, *, drain: bool) -> None:
        with self._changed:
            if self._stopping is not Stopping.NOW:
                self._stopping = Stopping.DRAINED if drain else Stopping.NOW
        self.wake()

    def request_rescale(self, parallelism: dict[str, int]) -> None:
        with self._changed:
            self._wanted_parallelism.update(parallelism)
        self.wake()

    def wanted_parallelism(self) -> dict[str, int]:
        """The number of subtasks of each stage from the next epoch on."""
        with self._changed:
            return {**self._runner.parallelism, **self._wanted_parallelism}

    def fail(self, error: PenstockError) -> None:
        with self._changed:
            self.error = self.error or error
            self._stopping = Stopping.NOW
        self.wake()

    def join(self) -> None:
        self._background.join()

    @property
    def ended(self) -> bool:
        """No micro-batch will be ingested any more."""
        return self._ended or self.error is not None

    @property
    def waiting_for(self) -> str | None:
        """Why no epoch runs right now, if none does."""
        return self._waiting_for

    # -- the loop ------------------------------------------------------------------------------------------------

    def step(self) -> Pause:
        """One epoch, or one look whether there is something to do."""
        try:
            pause = self._act()
        except PenstockError as error:
            self.fail(self.reason(error))
            pause = None
        except Exception as error:  # nothing may be swallowed (B12)
            self.fail(_fault(error))
            pause = None
        if pause is None:
            self._ended = True
            self.wake()
        return pause

    def reason(self, error: PenstockError) -> PenstockError:
        """A driver that was replaced finds its files swept, its batches taken: being replaced is what happened (C9)."""
        try:
            self._runner.checkpoints.require_leader(self._runner.generation)
        except PenstockError as reason:
            return reason if isinstance(reason, Fenced) else error
        return error

    def _die(self, error: BaseException) -> None:
        self._ended = True
        self.fail(_fault(error))

    def _act(self) -> Pause:
        with self._changed:
            action = decide(self._facts())
            if not isinstance(action, Wait):
                self._waiting_for = None
                self._runner.parallelism.update(self._wanted_parallelism)
                self._wanted_parallelism.clear()
        match action:
            case Stop():
                return None
            case Ingest():
                offer = self._offer
                assert offer is not None
                self._epoch(offer.batch)
                self._done(offer)
            case Drain():
                self._epoch(None)
            case Wait(why):
                return self._wait(why)
            case _:
                assert_never(action)
        self._leader_check_at = self._runner.clock() + LEADER_CHECK_S
        return AT_ONCE

    def _wait(self, why: str) -> float:
        if why != self._waiting_for:
            self._waiting_for = why
            self._events.waiting(why)
        now = self._runner.clock()
        if now >= self._leader_check_at:
            self._runner.checkpoints.require_leader(self._runner.generation)
            self._leader_check_at = now + LEADER_CHECK_S
        due_in_s = self._runner.next_due_in_s()
        until_check_s = self._leader_check_at - now
        # Due already, and still we wait: for a commit, which wakes us.
        return min(until_check_s, due_in_s) if due_in_s else until_check_s

    def _facts(self) -> Facts:
        manifest = self._runner.manifest
        return Facts(
            batch_offered=self._offer is not None,
            source_ended=self._source_ended,
            rows_in_flight=manifest.rows_in_flight,
            bytes_in_flight=manifest.bytes_in_flight,
            segments_in_flight=manifest.segments_in_flight,
            max_bytes_in_flight=self._config.max_in_flight,
            max_segments_in_flight=self._config.max_in_flight_segments,
            uncommitted=self._coordinator.uncommitted(),
            max_uncommitted=self._config.max_uncommitted,
            stopping=self._stopping,
            anything_due=self._runner.anything_due(),
        )

    def _epoch(self, batch: OfferedBatch | None) -> None:
        for attempt in range(1, self._config.epoch_retries + 2):
            try:
                result = self._runner.run(batch, self._coordinator.states)
            except JobFailed as error:
                self._events.failed(self._runner.manifest.checkpoint + 1, error, attempt)
                if attempt > self._config.epoch_retries or self._stopping is Stopping.NOW:
                    raise _stage_failed(error, attempt) from error
            else:
                self._coordinator.published(result.manifest, result.winners)
                self._events.published(result)
                return

    def _done(self, offer: Offer) -> None:
        with self._changed:
            offer.done = True
            self._offer = None
            self._changed.notify_all()


def _fault(error: BaseException) -> PenstockError:
    return PenstockError(f"{type(error).__name__}: {error}", cause="a fault in Penstock")


def _source_mismatch(runner: EpochRunner, batch: OfferedBatch, why: str) -> SourceMismatch:
    position = runner.manifest.source
    return SourceMismatch(
        f"Structured Streaming offers micro-batch {batch.batch_id}, checkpoint {runner.manifest.checkpoint} ends with "
        f"micro-batch {position.batch_id}: {why}",
        cause="the folder source/ inside the checkpoint was changed, replaced, or comes from another run",
        next_step="put back the source/ folder that belongs to this checkpoint, or start with a new checkpoint folder",
        offered=batch.batch_id,
        ingested=position.batch_id,
    )


def _stage_failed(error: JobFailed, attempts: int) -> StageFailed:
    return StageFailed(
        f"{error} (epoch tried {attempts} times)",
        cause="executors or Python workers were lost again and again, or the input cannot be read",
        next_step="look at the Spark log for the first failure; nothing published was lost, start again to go on",
    )
