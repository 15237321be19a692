"""One epoch: plan each stage, have it run, check that records add up, publish the checkpoint.

A failed epoch publishes nothing; the next one starts from the same manifest with other file names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from penstock.engine.breaker import Breaker
from penstock.engine.checkpoints import Checkpoints
from penstock.engine.cluster import Cluster, OfferedBatch, StageJob
from penstock.engine.inputs import is_rerouting, stage_inputs, with_source_watermarks, with_waiting
from penstock.engine.pace import Pace, useful_s
from penstock.engine.runningjob import Jobs, RunningJob
from penstock.errors import REPORT_IT, ConservationError, LostReport, PenstockError
from penstock.graph.pipeline import Pipeline
from penstock.graph.stages import Edge, Stage
from penstock.protocol.advance import Draft, absorb, missing_reports, unbalanced
from penstock.protocol.commit import with_pending
from penstock.protocol.epoch import Cadence
from penstock.protocol.eventtime import (
    Seen,
    advance_sources,
    flush_target,
    flushed,
    highest,
    is_due,
    lowest,
    next_processing_time,
    resumed,
    undeliverable,
)
from penstock.protocol.ids import Generation, next_checkpoint
from penstock.protocol.manifest import (
    Committable,
    EdgeState,
    Manifest,
    SinkState,
    SourceClock,
    SourcePosition,
    StageClock,
)
from penstock.protocol.order import with_rescaled
from penstock.protocol.plan import (
    StagePlan,
    SubtaskPlan,
    TableFacts,
    arrival_watermark,
    plan_subtasks,
)
from penstock.protocol.report import SubtaskReport, Timing

MIN_STAGE_SHARE = 0.1
"""Of an epoch, for each stage still to come: slow stages before it must not starve a stage for ever."""


@dataclass(frozen=True, slots=True)
class EpochResult:
    """A published epoch and what it took."""

    manifest: Manifest
    reports: tuple[SubtaskReport, ...]
    batch: OfferedBatch | None
    duration_s: float
    publish_s: float
    manifest_bytes: int
    waited_s: float = 0.0
    """Since the epoch before."""
    stage_s: Mapping[str, float] = field(default_factory=dict)
    """How long the job of each stage took that had one."""
    readable: Mapping[str, EdgeState] = field(default_factory=dict)
    """By edge, what may be read next: all but rows that wait for rows of other edges."""
    cadence: Cadence | None = None
    """How long it was planned to be; None without a barrier."""
    backlog_s: float = 0.0
    """How long what is in flight takes, as far as that is known."""

    @property
    def winners(self) -> frozenset[str]:
        """The attempts that are part of the checkpoint."""
        return frozenset([report.attempt for report in self.reports])

    @property
    def timings(self) -> tuple[Timing, ...]:
        return _timings(self.reports)


@dataclass(frozen=True, slots=True)
class Prepared:
    """An epoch that is done but not published. Its manifest must not change any more: whether a try to publish it
    failed may not be known."""

    manifest: Manifest
    reports: tuple[SubtaskReport, ...]
    batch: OfferedBatch | None
    started_s: float
    prepared_s: float
    useful_s: float
    cadence: Cadence | None


@dataclass(slots=True)
class EpochRunner:
    """Runs epochs one after another; `manifest` is always the newest published checkpoint."""

    pipeline: Pipeline
    cluster: Cluster
    checkpoints: Checkpoints
    generation: Generation
    manifest: Manifest
    parallelism: dict[str, int]
    epoch_s: float | None
    now: Callable[[], str]
    clock: Callable[[], float] = time.monotonic
    now_us: Callable[[], int] = lambda: time.time_ns() // 1000
    """Processing time; `engine.drivertime` keeps it from jumping."""
    discard: Callable[[Mapping[str, tuple[Committable, ...]]], None] = field(default=lambda _: None)
    pace: Pace = field(default_factory=Pace)
    breaker: Breaker = field(default_factory=lambda: Breaker(1.0))
    stage_s: dict[str, float] = field(default_factory=dict)
    ended_s: float | None = None
    """When the last epoch was published; `stage_s` is of the one that runs, or ran last."""
    flush_to: int | None = None
    """While an epoch runs that flushes: the watermark of all sources from then on."""
    away: int | None = None
    """For how long sources could not deliver and no checkpoint has counted it, in processing time; None before this
    driver first looked: none ran before it."""
    offered_at: int | None = None
    """Since when a micro-batch waits that no checkpoint has taken."""
    jobs: Jobs = field(default_factory=Jobs)

    def run(self, batch: OfferedBatch | None, sinks: Callable[[], Mapping[str, SinkState]]) -> EpochResult:
        """One epoch, with `batch` or on in-flight data alone. `sinks` is asked right before publishing.

        Raises: as `prepare` and `publish`.
        """
        return self.publish(self.prepare(batch, sinks))

    def prepare(
        self, batch: OfferedBatch | None, sinks: Callable[[], Mapping[str, SinkState]], flush_to: int | None = None
    ) -> Prepared:
        """Everything of an epoch but its last step. With `flush_to` all sources are as far as that.

        Raises: `JobFailed`, or the `PenstockError` that a subtask met; nothing was published then.
        """
        started = self.clock()
        self.stage_s, self.flush_to = {}, flush_to
        now = max(self.manifest.now, self.now_us())
        draft = self._begun(now, batch)
        cadence = None if self.epoch_s is None else self.pace.cadence(self.epoch_s, live=batch is not None)
        useful = 0.0
        reports: list[SubtaskReport] = []
        try:
            for index, stage in enumerate(self.pipeline.stages):
                stages_left = len(self.pipeline.stages) - index
                plan = self._plan(stage, draft, batch, started, now, stages_left, cadence)
                answers = self._run_stage(stage, plan, batch) if plan.launched() else []
                reports += answers
                useful += useful_s(_timings(answers), self.cluster.slots) if answers else 0.0
                self._accept(plan, answers)
                # Also a stage that had nothing to do: watermarks pass through it.
                draft = absorb(draft, plan, answers, self.cluster.handed_over() if plan.live else None)
            self._check(draft)
            self.breaker.judge(reports)
        except Exception:
            # Nothing was published, so nothing of this epoch will ever be committed or read.
            self.flush_to = None
            self.discard(_committables(reports))
            self._remove_files(reports)
            raise
        prepared_s = self.clock()
        manifest = self._next_manifest(draft, batch, now, sinks())
        self.flush_to = None
        return Prepared(manifest, tuple(reports), batch, started, prepared_s, useful, cadence)

    def publish(self, epoch: Prepared) -> EpochResult:
        """Makes an epoch a checkpoint; may be tried again with the same epoch.

        Raises: `Fenced`; `StorageFailed`, and then it is unknown whether it is published.
        """
        tried_s = self.clock()
        manifest_bytes = self.checkpoints.publish(epoch.manifest)
        self.manifest, self.away = epoch.manifest, 0
        self.breaker.published()
        ended = self.clock()
        self.pace.published(ended - tried_s)
        took_s = epoch.prepared_s - epoch.started_s + ended - tried_s
        self.pace.ended(max(0.0, took_s - epoch.useful_s), live=epoch.batch is not None)
        waited_s = 0.0 if self.ended_s is None else max(0.0, epoch.started_s - self.ended_s)
        self.ended_s = ended
        return EpochResult(
            epoch.manifest,
            epoch.reports,
            epoch.batch,
            duration_s=ended - epoch.started_s,
            publish_s=ended - epoch.prepared_s,
            manifest_bytes=manifest_bytes,
            waited_s=waited_s,
            stage_s=dict(self.stage_s),
            readable=self._readable(),
            cadence=epoch.cadence,
            backlog_s=self.backlog_s(),
        )

    def backlog_s(self) -> float:
        """How long what is in flight takes, as far as the cost of rows is known."""
        return self.pace.backlog_s(self.cluster.slots) if self.manifest.rows_in_flight else 0.0

    def planned_s(self) -> float | None:
        """How long the next epoch on in-flight data is planned to be; None without a barrier."""
        return None if self.epoch_s is None else self.pace.cadence(self.epoch_s, live=False).planned_s

    def _readable(self) -> dict[str, EdgeState]:
        draft = Draft(edges=self.manifest.edges, state={}, stages=self.manifest.stages)
        inputs = (stage_inputs(stage, draft) for stage in self.pipeline.stages)
        return {name: part.readable() for parts in inputs for name, part in parts.items()}

    def _remove_files(self, reports: Sequence[SubtaskReport]) -> None:
        """Of subtasks that did their part of an epoch that failed; what cannot be removed now, the collector will."""
        with suppress(PenstockError):
            self.checkpoints.store.delete([path for report in reports for path in report.files()])

    def _begun(self, now: int, batch: OfferedBatch | None = None) -> Draft:
        """What the epoch starts from: time has passed, so an idle source may have stopped to hold others back."""
        clocks = self._source_clocks({}, now)
        edges = with_source_watermarks(self.pipeline, self.manifest.edges, clocks)
        manifest = self.manifest
        stages = with_rescaled(manifest, self._parallelism(batch), next_checkpoint(manifest.checkpoint))
        return Draft(edges=edges, state=manifest.state, stages=stages, counters=manifest.counters)

    def _source_clocks(self, event_times: Mapping[str, Seen], now: int) -> dict[str, SourceClock]:
        seen = {edge.producer: event_times[edge.name] for edge in self.pipeline.edges() if edge.name in event_times}
        times = {source.name: source.time for source in self.pipeline.sources if source.time is not None}
        if self.away is None:
            self.away = now - self.manifest.now
        lost = undeliverable(self.manifest.now, now, away=self.away, offered=self.offered_at)
        return flushed(advance_sources(resumed(self.manifest.sources, lost), times, seen, now), self.flush_to)

    @property
    def rerouting(self) -> bool:
        """Whether rows of an earlier pipeline are still to go through this one: nothing newer is read before."""
        return any(
            self.manifest.edges[part.edge.name].segments for stage in self.pipeline.stages for part in stage.leftovers
        )

    def anything_due(self) -> bool:
        """Whether time alone gives some operator something to do, also once watermarks have passed through the stages
        before it. Not asked while rows are in flight: an epoch runs then anyway."""
        waiting = any(timers for clock in self.manifest.stages.values() for timers in clock.timers.values())
        if not waiting or self.manifest.rows_in_flight:
            return False
        now = max(self.manifest.now, self.now_us())
        draft = self._begun(now)
        # Nothing is in flight, so all subtasks of a stage are as far as its inputs: no plan is needed to know.
        marks = {name: edge.watermark for name, edge in draft.edges.items()}
        for stage in self.pipeline.stages:
            clock = draft.stages.get(stage.name, StageClock())
            reached = lowest(marks[edge.name] for edge in stage.inputs if edge.timed)
            if is_due((timer for timers in clock.timers.values() for timer in timers), reached, now):
                return True
            marks |= {edge.name: highest((marks[edge.name], clock.watermark, reached)) for edge in stage.outputs}
        return False

    def flush_target(self) -> int | None:
        """The watermark at which everything has come out that waits for event time; None if nothing does."""
        timers = (timer for clock in self.manifest.stages.values() for part in clock.timers.values() for timer in part)
        timed = (source.name for source in self.pipeline.sources if source.time is not None)
        clocks = self.manifest.sources
        return flush_target(timers, [clocks[name].watermark if name in clocks else None for name in timed])

    def next_due_in_s(self) -> float | None:
        """Seconds until processing time alone makes something due."""
        timers = (timer for clock in self.manifest.stages.values() for part in clock.timers.values() for timer in part)
        moment = next_processing_time(timers)
        return None if moment is None else max(0.0, (moment - self.now_us()) / 1e6)

    def _parallelism(self, batch: OfferedBatch | None) -> dict[str, int]:
        return {**self.parallelism, **({} if batch is None else batch.content.planned_for)}

    def _subtasks(self, stage: Stage, draft: Draft, now: int, batch: OfferedBatch | None) -> tuple[SubtaskPlan, ...]:
        clock = draft.stages.get(stage.name, StageClock())
        return plan_subtasks(
            inputs=stage_inputs(stage, draft, live=batch is not None),
            state={
                table.name: TableFacts(draft.state.get(table.name, ()), broadcast=table.broadcast)
                for table in stage.tables
            },
            parallelism=self._parallelism(batch)[stage.name],
            max_parallelism=self.manifest.max_parallelism,
            timers=[timer for timers in clock.timers.values() for timer in timers],
            now=now,
        )

    def _plan(
        self,
        stage: Stage,
        draft: Draft,
        batch: OfferedBatch | None,
        started: float,
        now: int,
        stages_left: int,
        cadence: Cadence | None,
    ) -> StagePlan:
        live = batch is not None and bool(stage.source_inputs)
        rerouting = is_rerouting(stage, draft)
        parallelism = self._parallelism(batch)
        subtasks = self._subtasks(stage, draft, now, batch)
        budget_s = None
        if cadence is not None and not stage.unbounded:
            least_s = cadence.planned_s * MIN_STAGE_SHARE * stages_left
            left_s = max(least_s, cadence.planned_s - (self.clock() - started))
            budget_s = self.pace.budget(
                stage.name, subtasks, left_s, stages_left=stages_left, slots=self.cluster.slots, live=live
            )
        return StagePlan(
            stage=stage.name,
            checkpoint=next_checkpoint(self.manifest.checkpoint),
            generation=self.generation,
            parallelism=parallelism[stage.name],
            max_parallelism=self.manifest.max_parallelism,
            budget_s=budget_s,
            row_cost_s=self.pace.row_cost_s.get(stage.name),
            consumer_parallelism={edge.name: parallelism[edge.consumer] for edge in stage.outputs},
            subtasks=subtasks,
            now=now,
            output_watermarks={
                edge.name: with_waiting(stage, draft, self._arrival_watermark(edge, draft)) for edge in stage.outputs
            },
            broadcast_inputs=tuple(edge.name for edge in stage.inputs if edge.broadcast),
            broadcast_rows_max=None if budget_s is None else self.pace.broadcast_rows(stage.name, budget_s),
            leftovers=tuple(part.edge.name for part in stage.leftovers),
            rerouting=rerouting,
            relays=stage.relays,
        )

    def _arrival_watermark(self, edge: Edge, draft: Draft) -> int | None:
        """Of this stage's output: up to where it was complete before the epoch, or what the consumer's others say."""
        (consumer,) = (stage for stage in self.pipeline.stages if stage.name == edge.consumer)
        return arrival_watermark(stage_inputs(consumer, draft).values())

    def _run_stage(self, stage: Stage, plan: StagePlan, batch: OfferedBatch | None) -> list[SubtaskReport]:
        started = self.clock()
        with self.jobs.run(RunningJob(plan.stage, plan.checkpoint, plan.generation, started, plan.budget_s)):
            reports = self.cluster.run(StageJob(stage, plan, batch))
        self.stage_s[stage.name] = job_s = self.clock() - started
        self.pace.observe(stage.name, plan, job_s, self.cluster.slots, reports)
        return reports

    def _accept(self, plan: StagePlan, reports: Sequence[SubtaskReport]) -> None:
        """Raises: the error of a subtask that failed; `LostReport`."""
        for report in reports:
            if report.failure is not None:
                raise PenstockError.from_report(report.failure)
        missing = missing_reports(plan, reports)
        if missing:
            raise LostReport(
                f"stage {plan.stage}, checkpoint {plan.checkpoint}: subtasks {list(missing)} of {plan.parallelism} "
                f"gave no report or more than one ({len(reports)} reports for {len(plan.launched())} launched)",
                cause="Spark left partitions out or merged them: adaptive execution, or another partitioning",
                next_step="set spark.sql.adaptive.enabled=false in the session, then start again",
            )

    def _check(self, draft: Draft) -> None:
        """Conservation, before anything is published."""
        violations = (*draft.violations, *unbalanced(draft.edges))
        if violations:
            raise ConservationError(
                "; ".join(f"{violation.where}: {violation.what}" for violation in violations),
                cause="a fault in Penstock or in Spark's delivery of records; nothing of this epoch was published",
                next_step=REPORT_IT,
                checkpoint=next_checkpoint(self.manifest.checkpoint),
            )

    def _next_manifest(
        self, draft: Draft, batch: OfferedBatch | None, now: int, sinks: Mapping[str, SinkState]
    ) -> Manifest:
        checkpoint = next_checkpoint(self.manifest.checkpoint)
        clocks = self._source_clocks(draft.event_times, now)
        sink_watermarks = self._sink_watermarks(draft)
        return msgspec.structs.replace(
            self.manifest,
            checkpoint=checkpoint,
            parent=self.manifest.checkpoint,
            created_at=self.now(),
            parallelism=self._parallelism(batch),
            source=self.manifest.source if batch is None else _position(batch, self.manifest.source),
            edges=with_source_watermarks(self.pipeline, draft.edges, clocks),
            state=dict(draft.state),
            now=now,
            sources=clocks,
            stages=dict(draft.stages),
            counters=dict(draft.counters),
            sinks={
                name: with_pending(state, checkpoint, draft.committables.get(name, ()), sink_watermarks[name])
                for name, state in sinks.items()
            },
        )

    def _sink_watermarks(self, draft: Draft) -> dict[str, int | None]:
        """In milliseconds, as tables count: what the stage that writes to a sink has completed in all its subtasks."""
        marks = {name: clock.watermark for name, clock in draft.stages.items() if clock.watermark is not None}
        return {
            binding.name: marks[stage.name] // 1000 if stage.name in marks else None
            for stage in self.pipeline.stages
            for binding in stage.sinks
        }


def _position(batch: OfferedBatch, before: SourcePosition) -> SourcePosition:
    return msgspec.structs.replace(
        before,
        batch_id=batch.batch_id,
        offsets_digest=batch.offsets_digest,
        query_id=batch.query_id,
        rewind=False,
        rewrite=msgspec.UNSET,
    )


def _timings(reports: Sequence[SubtaskReport]) -> tuple[Timing, ...]:
    return tuple([report.timing for report in reports if report.timing is not None])


def _committables(reports: Sequence[SubtaskReport]) -> dict[str, tuple[Committable, ...]]:
    found: dict[str, list[Committable]] = {}
    for report in reports:
        for sink in report.sinks:
            found.setdefault(sink.sink, []).extend(sink.committables)
    return {sink: tuple(committables) for sink, committables in found.items()}
