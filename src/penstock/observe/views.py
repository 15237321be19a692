"""A manifest and the last epochs as the parts of a `QueryView`: graph, backlog, watermarks, sinks, rates."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite

from penstock.observe.condense import seconds_of
from penstock.observe.events import Committed, EpochPublished
from penstock.observe.model import (
    CheckpointView,
    EdgeView,
    OperatorView,
    Rates,
    SinkView,
    SourceView,
    StageView,
    StateTableView,
)
from penstock.protocol.manifest import Manifest, OperatorShape, SinkState, StageClock, TableMark

LATELY = 20
"""Epochs from which rates are made: enough to be steady, few enough to follow a change within seconds."""
NAME_MAX = 255
LINKS_MAX = 10_000

PHASES = ("waiting", "outside", "opening", "delivery", "stepping", "writing", "driver", "publish")
"""Where the time of epochs goes, in the order in which it goes."""


def checkpoint_view(manifest: Manifest) -> CheckpointView:
    return CheckpointView(
        checkpoint=manifest.checkpoint,
        parent=manifest.parent,
        generation=manifest.generation,
        created_at=manifest.created_at[:NAME_MAX],
        batch_id=manifest.source.batch_id,
        parallelism=dict(manifest.parallelism),
        rows_in_flight=manifest.rows_in_flight,
        bytes_in_flight=manifest.bytes_in_flight,
        segments_in_flight=manifest.segments_in_flight,
        state_files={table: len(files) for table, files in manifest.state.items()},
        state_bytes=sum(file.bytes for files in manifest.state.values() for file in files),
        uncommitted={name: tuple(part.checkpoint for part in sink.pending) for name, sink in manifest.sinks.items()},
    )


def source_views(manifest: Manifest) -> tuple[SourceView, ...]:
    clocks = manifest.sources
    return tuple(
        SourceView(
            name[:NAME_MAX],
            columns,
            clocks[name].max_event_time if name in clocks else None,
            clocks[name].watermark if name in clocks else None,
            lag_s(manifest, clocks[name].watermark) if name in clocks else None,
            clocks[name].active_at if name in clocks else None,
        )
        for name, columns in manifest.shape.sources.items()
    )


def operator_views(manifest: Manifest) -> tuple[OperatorView, ...]:
    return tuple(
        OperatorView(
            name[:NAME_MAX],
            shape.kind[:NAME_MAX],
            shape.stage[:NAME_MAX],
            shape.output,
            tuple(_state_table(manifest, name, part, columns) for part, columns in shape.state.items()),
        )
        for name, shape in manifest.shape.operators.items()
    )


def _state_table(manifest: Manifest, operator: str, part: str, columns: tuple[tuple[str, str], ...]) -> StateTableView:
    name = f"{operator}/{part}" if part else operator
    files = manifest.state.get(name, ())
    rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
    return StateTableView(name[:NAME_MAX], columns, rows, size, len(files))


def stage_views(manifest: Manifest, epochs: Sequence[EpochPublished]) -> tuple[StageView, ...]:
    operators: dict[str, list[str]] = {}
    for name, shape in manifest.shape.operators.items():
        operators.setdefault(shape.stage, []).append(name[:NAME_MAX])
    return tuple(
        StageView(
            name=stage[:NAME_MAX],
            operators=tuple(names),
            parallelism=manifest.parallelism.get(stage, 0),
            watermark=(clock := manifest.stages.get(stage, StageClock())).watermark,
            watermark_lag_s=lag_s(manifest, clock.watermark),
            timers=sum(map(len, clock.timers.values())),
            last=next((epoch.stages[stage] for epoch in reversed(epochs) if stage in epoch.stages), None),
            rows_per_s=_rate(epochs, [epoch.stages[stage].rows if stage in epoch.stages else 0 for epoch in epochs]),
        )
        for stage, names in operators.items()
    )


def edge_views(manifest: Manifest, epochs: Sequence[EpochPublished]) -> tuple[EdgeView, ...]:
    views = []
    for name, shape in manifest.shape.edges.items():
        edge = manifest.edges.get(name)
        if edge is None:
            continue
        processed = [epoch.edges[name].rows_processed if name in epoch.edges else 0 for epoch in epochs]
        rows = edge.rows_in_flight
        views.append(
            EdgeView(
                name=name,
                producer=shape.producer[:NAME_MAX],
                consumer=shape.consumer[:NAME_MAX],
                keys=shape.keys,
                columns=shape.columns,
                broadcast=shape.broadcast,
                from_source=shape.producer in manifest.shape.sources,
                accepted=edge.accepted,
                consumed=edge.consumed,
                dropped=edge.dropped,
                rows_in_flight=rows,
                bytes_in_flight=edge.bytes_in_flight,
                segments=len(edge.segments),
                backlog_s=backlog_s(rows, _rate(epochs, processed)),
                watermark=edge.watermark,
                watermark_lag_s=lag_s(manifest, edge.watermark),
                last=next((epoch.edges[name] for epoch in reversed(epochs) if name in epoch.edges), None),
            )
        )
    return tuple(views)


def sink_views(manifest: Manifest, commits: Sequence[Committed]) -> tuple[SinkView, ...]:
    """A manifest is published before its own commit, so the history often knows of one more."""
    last = {commit.sink: commit for commit in commits}
    return tuple(_sink_view(name, sink, last.get(name)) for name, sink in manifest.sinks.items())


def _sink_view(name: str, sink: SinkState, last: Committed | None) -> SinkView:
    newer = last is not None and (sink.committed is None or last.last > sink.committed)
    pending = [part for part in sink.pending if last is None or part.checkpoint > last.last]
    return SinkView(
        name=name,
        table=sink.table.name if isinstance(sink.table, TableMark) else None,
        committed=last.last if last is not None and newer else sink.committed,
        snapshot=last.snapshot if last is not None and newer else sink.snapshot,
        watermark_ms=sink.watermark,
        pending=tuple(part.checkpoint for part in pending),
        pending_rows=sum(part.rows for part in pending),
        pending_bytes=sum(made.bytes for part in pending for made in part.committables),
        last_commit=last,
    )


def links_of(
    manifest: Manifest, told: Sequence[tuple[str, str]], epochs: Sequence[EpochPublished]
) -> tuple[tuple[str, str], ...]:
    """The graph by name: as the newest start told it, or as far as the manifest knows it.

    A manifest knows edges between stages. Operators of a stage are then drawn one behind the other, and a sink behind
    the last operator of each stage that was seen to write to it, or of each stage that hands nothing on.
    """
    shape = manifest.shape
    known = {*shape.sources, *shape.operators, *shape.sinks}
    if told and all(name in known for link in told for name in link):
        return tuple(told[:LINKS_MAX])
    by_stage = _by_stage(shape.operators)
    ends = {stage: names[-1] for stage, names in by_stage.items()}
    links = [pair for names in by_stage.values() for pair in pairwise(names)]
    for edge in shape.edges.values():
        producer = edge.producer if edge.producer in shape.sources else ends.get(edge.producer)
        if producer is not None and edge.consumer in by_stage:
            links.append((producer, by_stage[edge.consumer][0]))
    handing_on = {edge.producer for edge in shape.edges.values()}
    for sink in shape.sinks:
        writing = {stage for epoch in epochs for stage, figures in epoch.stages.items() if sink in figures.sinks}
        stages = writing & ends.keys() or {stage for stage in ends if stage not in handing_on}
        links += [(ends[stage], sink) for stage in sorted(stages)]
    return tuple(dict.fromkeys(links))[:LINKS_MAX]


def _by_stage(operators: Mapping[str, OperatorShape]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, shape in operators.items():
        found.setdefault(shape.stage, []).append(name)
    return found


def lag_s(manifest: Manifest, watermark: int | None) -> float | None:
    """How far a watermark is behind the clock of its checkpoint; None where there is none, or the clock is not told."""
    return None if watermark is None or not manifest.now else (manifest.now - watermark) / 1e6


def backlog_s(rows: int, rows_per_s: float | None) -> float | None:
    """How long rows in flight take at this rate.

    >>> backlog_s(0, None), backlog_s(500, 100.0), backlog_s(500, None)
    (0.0, 5.0, None)
    """
    if rows == 0:
        return 0.0
    return rows / rows_per_s if rows_per_s else None


def lately(epochs: Sequence[EpochPublished]) -> list[EpochPublished]:
    """The last epochs of the newest run."""
    found: list[EpochPublished] = []
    for epoch in reversed(epochs):
        if epoch.kind == "takeover" or len(found) == LATELY:
            break
        found.append(epoch)
    return found[::-1]


def _rate(epochs: Sequence[EpochPublished], rows: Sequence[int]) -> float | None:
    """While epochs ran: waiting for input says nothing about how fast rows are processed."""
    seconds = sum(epoch.duration_s for epoch in epochs)
    return _per_s(sum(rows), seconds)


def _per_s(count: int, seconds: float) -> float | None:
    """None where no time passed, or so little that no number is left: JSON knows no infinity."""
    rate = count / seconds if seconds > 0 else None
    return rate if rate is not None and isfinite(rate) else None


def rates_of(epochs: Sequence[EpochPublished]) -> Rates:
    """Of the last epochs."""
    if not epochs:
        return Rates()
    times = [at for epoch in epochs if (at := seconds_of(epoch.at)) is not None]
    gaps = [after - before for before, after in pairwise(times)]
    total_s = sum(epoch.duration_s + epoch.waited_s for epoch in epochs)

    return Rates(
        cadence_s=statistics.median(gaps) if gaps else None,
        cadence_s_max=max(gaps, default=None),
        rows_in_per_s=_per_s(sum(epoch.rows_in for epoch in epochs), total_s),
        rows_processed_per_s=_per_s(sum(epoch.rows_processed for epoch in epochs), total_s),
        rows_out_per_s=_per_s(sum(epoch.rows_out for epoch in epochs), total_s),
        phases=phases_of(epochs),
    )


def phase_seconds(epoch: EpochPublished) -> dict[str, float]:
    """Where the time of one epoch went; stages run one after another, so theirs add up."""
    stages = epoch.stages.values()
    in_driver_s = epoch.duration_s - epoch.publish_s - sum(stage.job_s for stage in stages)
    return {
        "waiting": epoch.waited_s,
        "outside": sum(stage.outside_s for stage in stages),
        "opening": sum(stage.opening_s for stage in stages),
        "delivery": sum(stage.waiting_s for stage in stages),
        "stepping": sum(stage.stepping_s for stage in stages),
        "writing": sum(stage.writing_s for stage in stages),
        # A history that is older than figures of stages tells the whole only.
        "driver": max(0.0, in_driver_s) if stages else 0.0,
        "publish": epoch.publish_s,
    }


def phases_of(epochs: Sequence[EpochPublished]) -> dict[str, float]:
    """Shares of the time, by phase."""
    sums = dict.fromkeys(PHASES, 0.0)
    for epoch in epochs:
        for phase, seconds in phase_seconds(epoch).items():
            sums[phase] += max(0.0, seconds)
    total_s = sum(sums.values())
    return {phase: seconds / total_s for phase, seconds in sums.items()} if total_s > 0 else {}
