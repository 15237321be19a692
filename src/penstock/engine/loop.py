"""The epoch loop: one thread that asks `protocol.epoch.decide` what to do, and does it.

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
from penstock.engine.cluster import JobFailed, OfferedBatch
from penstock.engine.commits import CommitCoordinator
from penstock.engine.epochs import EpochResult, EpochRunner
from penstock.errors import PenstockError, SourceMismatch, StageFailed
from penstock.protocol.epoch import Drain, Facts, Ingest, Next, Stop, Stopping, Wait, decide
from penstock.protocol.ids import CheckpointId
from penstock.protocol.recover import RefuseBatch, SkipBatch, TakeBatch, judge_batch

LEADER_CHECK_S = 5.0
"""Whoever publishes finds out that it was replaced. One that only waits must look, or it would take the newer
driver's micro-batches away from it."""


class NotIngested(Exception):
    """Ends the handler of a micro-batch that the loop did not take, because the query stops."""


@dataclass(slots=True)
class _Offer:
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

    def __init__(self, runner: EpochRunner, coordinator: CommitCoordinator, config: Config, events: LoopEvents) -> None:
        self._runner, self._coordinator, self._config, self._events = runner, coordinator, config, events
        self._changed = threading.Condition()
        self._offer: _Offer | None = None
        self._stopping = Stopping.NO
        self._source_ended = False
        self._wanted_parallelism: dict[str, int] = {}
        self._waiting_for: str | None = None
        self.error: PenstockError | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-epochs", daemon=True)

    # -- called from other threads -------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def offer(self, batch: OfferedBatch) -> None:
        """Hands a micro-batch over and returns when it is part of a published checkpoint.

        Raises: `SourceMismatch`; `NotIngested` when the query stops first.
        """
        match judge_batch(self._runner.manifest, batch.batch_id, batch.offsets_digest, batch.query_id):
            case SkipBatch():
                return
            case RefuseBatch(why):
                error = _source_mismatch(self._runner, batch, why)
                self.fail(error)
                raise error
            case TakeBatch():
                self._await_done(_Offer(batch))

    def _await_done(self, offer: _Offer) -> None:
        with self._changed:
            self._offer = offer
            self._changed.notify_all()
            while not offer.done and self._thread.is_alive() and self.error is None:
                self._changed.wait(1.0)
            if not offer.done:
                raise NotIngested(f"micro-batch {offer.batch.batch_id} was not ingested: the query stopped")

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def end_of_source(self) -> None:
        with self._changed:
            self._source_ended = True
            self._changed.notify_all()

    def request_stop(self, *, drain: bool) -> None:
        with self._changed:
            if self._stopping is not Stopping.NOW:
                self._stopping = Stopping.DRAINED if drain else Stopping.NOW
            self._changed.notify_all()

    def request_rescale(self, parallelism: dict[str, int]) -> None:
        with self._changed:
            self._wanted_parallelism.update(parallelism)
            self._changed.notify_all()

    def fail(self, error: PenstockError) -> None:
        with self._changed:
            self.error = self.error or error
            self._stopping = Stopping.NOW
            self._changed.notify_all()

    def join(self, timeout_s: float | None = None) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def waiting_for(self) -> str | None:
        """Why no epoch runs right now, if none does."""
        return self._waiting_for

    # -- the loop ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                action = self._next_action()
                match action:
                    case Stop():
                        return
                    case Ingest():
                        offer = self._offer
                        assert offer is not None
                        self._epoch(offer.batch)
                        self._done(offer)
                    case Drain():
                        self._epoch(None)
                    case Wait():
                        raise AssertionError("waiting ends with another action")
                    case _:
                        assert_never(action)
        except PenstockError as error:
            self.fail(error)
        except BaseException as error:  # nothing may be swallowed (B12)
            self.fail(PenstockError(f"{type(error).__name__}: {error}", cause="a fault in Penstock"))
        finally:
            self.wake()

    def _next_action(self) -> Next:
        with self._changed:
            while isinstance(action := decide(self._facts()), Wait):
                if action.why != self._waiting_for:
                    self._waiting_for = action.why
                    self._events.waiting(action.why)
                due_in_s = self._runner.next_due_in_s()
                wait_s = LEADER_CHECK_S if due_in_s is None else min(LEADER_CHECK_S, due_in_s)
                if not self._changed.wait(wait_s) and wait_s == LEADER_CHECK_S:
                    self._runner.checkpoints.require_leader(self._runner.generation)
            self._waiting_for = None
            self._runner.parallelism.update(self._wanted_parallelism)
            self._wanted_parallelism.clear()
            return action

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
                self._coordinator.published(CheckpointId(result.manifest.checkpoint), result.committables)
                self._events.published(result)
                return

    def _done(self, offer: _Offer) -> None:
        with self._changed:
            offer.done = True
            self._offer = None
            self._changed.notify_all()


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
