"""A `QueryView` as the JSON that the page draws: short names, whole numbers, columns instead of rows, all bounded.

10,000 epochs fit into two megabytes: times are in milliseconds, and figures of subtasks are there for the last epochs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from math import isfinite
from typing import Any, TypeAlias

from penstock.display import shortened
from penstock.observe.events import Committed, EpochPublished, EpochsSummed, SourceProgress
from penstock.observe.figures import StageFigures
from penstock.observe.model import EdgeView, Failure, OperatorView, QueryView, Run, SinkView, StageView
from penstock.observe.views import PHASES, phase_seconds
from penstock.text import printable, redacted

Json: TypeAlias = dict[str, Any]

DETAILED = 100
"""So many of the last epochs carry the figures of their stages and subtasks."""
LISTED = 500
"""Commits, failures and the like are listed one by one up to here, the newest first."""
NAMES_MAX = 2_000
"""Operators, edges and sinks; a pipeline of that size cannot be drawn anyway."""
NAME_MAX = 120
TEXT_MAX = 2_000
COLUMNS_MAX = 60


def document(view: QueryView) -> Json:
    """Everything the page shows of one query."""
    return {
        **summary(view),
        "identity": _name(view.identity or ""),
        "library": _name(view.library or ""),
        "sources": [
            {"name": _name(part.name), "columns": _columns(part.columns), "lag": _number(part.watermark_lag_s)}
            for part in view.sources[:NAMES_MAX]
        ],
        "offsets": [] if view.alive is None else [_offsets(part) for part in view.alive.sources[:NAMES_MAX]],
        "stages": [_stage(part) for part in view.stages[:NAMES_MAX]],
        "operators": [_operator(part) for part in view.operators[:NAMES_MAX]],
        "edges": [_edge(part) for part in view.edges[:NAMES_MAX]],
        "sinks": [_sink(part) for part in view.sinks[:NAMES_MAX]],
        "links": [[_name(a), _name(b)] for a, b in view.links[:NAMES_MAX]],
        "rates": {
            "cadence": _number(view.rates.cadence_s),
            "cadence_max": _number(view.rates.cadence_s_max),
            "rows_in": _number(view.rates.rows_in_per_s),
            "rows_processed": _number(view.rates.rows_processed_per_s),
            "rows_out": _number(view.rates.rows_out_per_s),
            "phases": {_name(name): _number(share) for name, share in view.rates.phases.items()},
        },
        "counters": {_name(name): count for name, count in list(view.counters.items())[:NAMES_MAX]},
        "epochs": _epochs(view.older_epochs, view.epochs),
        "details": {str(epoch.checkpoint): _detail(epoch) for epoch in view.epochs[-DETAILED:]},
        "checkpoints": _checkpoints(view),
        "runs": [_run(part) for part in view.runs[-LISTED:]],
        "commits": [_commit(part) for part in view.commits[-LISTED:]],
        "commit_count": len(view.commits) + sum(part.commits for part in view.older_commits),
        "marks": _marks(view),
        "upkeep": [_upkeep(part) for part in view.upkeep[-LISTED:]],
        "savepoints": [
            {"at": _ms(part.at), "path": _text(part.path), "checkpoint": part.checkpoint, "bytes": part.bytes}
            for part in view.savepoints[-LISTED:]
        ],
        "failures": [_failure(part) for part in view.failures[-LISTED:]],
        "unreadable": [
            {"path": _text(part.path), "code": part.code, "why": _text(part.why)} for part in view.unreadable[:LISTED]
        ],
    }


def summary(view: QueryView) -> Json:
    """What a card of a query shows, where there are several."""
    verdict = view.verdict
    recent = view.epochs[-60:]
    return {
        "name": _name(view.name) or "query",
        "folder": _text(redacted(view.folder)),
        "looked_at": _ms(view.looked_at),
        "verdict": {
            "kind": verdict.kind.value,
            "health": verdict.health.name.lower(),
            "why": _text(verdict.why),
            "next_step": _text(verdict.next_step),
            "since": None if verdict.since is None else _ms(verdict.since),
            "code": verdict.code,
        },
        "newest": view.checkpoint_ids[-1] if view.checkpoint_ids else None,
        "newest_at": _newest_at(view),
        "rows_in_flight": view.rows_in_flight,
        "bytes_in_flight": view.bytes_in_flight,
        "backlog_s": _number(view.backlog_s),
        "uncommitted": view.uncommitted,
        "late_rows": view.late_rows,
        "state_bytes": sum(table.bytes for part in view.operators for table in part.state),
        "state_rows": sum(table.rows for part in view.operators for table in part.state),
        "lag": _number(max((part.watermark_lag_s for part in view.stages if part.watermark_lag_s), default=None)),
        "spark": [round(epoch.duration_s * 1000) for epoch in recent],
    }


def _newest_at(view: QueryView) -> int | None:
    if view.checkpoints:
        return _ms(view.checkpoints[-1].created_at)
    return _ms(view.epochs[-1].at) if view.epochs else None


# -- the graph ---------------------------------------------------------------------------------------------------------


def _offsets(part: SourceProgress) -> Json:
    """How far a source was read, as Spark tells it."""
    return {
        "source": _name(part.source),
        "rows_per_s": _number(part.rows_per_s),
        "end": shortened(_text(redacted(part.end)), NAME_MAX),
        "latest": shortened(_text(redacted(part.latest)), NAME_MAX),
        "behind": part.behind,
    }


def _stage(part: StageView) -> Json:
    return {
        "name": _name(part.name),
        "operators": [_name(name) for name in part.operators[:NAMES_MAX]],
        "parallelism": part.parallelism,
        "lag": _number(part.watermark_lag_s),
        "rows_per_s": _number(part.rows_per_s),
        "skew": None if part.last is None else _number(part.last.skew),
        "row_cost_us": None
        if part.last is None or part.last.row_cost_s is None
        else _number(part.last.row_cost_s * 1e6),
        "memory": 0 if part.last is None else part.last.memory_bytes,
        "timers": part.timers,
    }


def _operator(part: OperatorView) -> Json:
    return {
        "name": _name(part.name),
        "kind": _name(part.kind),
        "stage": _name(part.stage),
        "columns": _columns(part.columns),
        "state": [
            {"name": _name(table.name), "rows": table.rows, "bytes": table.bytes, "files": table.files}
            for table in part.state[:NAMES_MAX]
        ],
    }


def _edge(part: EdgeView) -> Json:
    return {
        "name": _name(part.name),
        "producer": _name(part.producer),
        "consumer": _name(part.consumer),
        "keys": [_name(key) for key in part.keys[:COLUMNS_MAX]],
        "columns": _columns(part.columns),
        "broadcast": part.broadcast,
        "from_source": part.from_source,
        "accepted": part.accepted,
        "dropped": part.dropped,
        "rows": part.rows_in_flight,
        "bytes": part.bytes_in_flight,
        "segments": part.segments,
        "backlog_s": _number(part.backlog_s),
        "lag": _number(part.watermark_lag_s),
    }


def _sink(part: SinkView) -> Json:
    return {
        "name": _name(part.name),
        "table": None if part.table is None else _text(redacted(part.table)),
        "committed": part.committed,
        "snapshot": part.snapshot,
        "watermark": part.watermark_ms,
        "pending": list(part.pending[-LISTED:]),
        "pending_count": len(part.pending),
        "pending_rows": part.pending_rows,
        "pending_bytes": part.pending_bytes,
        "last": None if part.last_commit is None else _ms(part.last_commit.at),
    }


# -- epochs ------------------------------------------------------------------------------------------------------------

_COLUMNS = (
    *("checkpoint", "at", "kind", "duration", *PHASES, "rows_in", "rows_processed", "rows_out"),
    *("rows_in_flight", "bytes_in_flight", "barrier", "state_bytes", "bytes_written"),
)
_AT = _COLUMNS.index("at")
_KINDS = {"ingest": 0, "drain": 1, "takeover": 2}
_SUMMED = 3


def _epochs(older: Iterable[EpochsSummed], epochs: Iterable[EpochPublished]) -> Json:
    """Columns of equal length; epochs that the history has summed up are one entry with their means."""
    rows = [*(_summed(part) for part in older), *(_epoch(part) for part in epochs)]
    rows.sort(key=lambda row: row[_AT])  # the page looks epochs up by time, and a clock may have been set back
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(_COLUMNS)
    made: Json = {name: list(values) for name, values in zip(_COLUMNS, columns, strict=True)}
    at = made["at"]
    made["at"] = [*at[:1], *(after - before for before, after in pairwise(at))]
    return made


def _epoch(epoch: EpochPublished) -> Sequence[int]:
    phases = phase_seconds(epoch)
    return (
        *(epoch.checkpoint, _ms(epoch.at), _KINDS.get(epoch.kind, 0), _millis(epoch.duration_s)),
        *(_millis(phases[phase]) for phase in PHASES),
        *(epoch.rows_in, epoch.rows_processed, epoch.rows_out, epoch.rows_in_flight, epoch.bytes_in_flight),
        *(_millis(epoch.barrier_delay_s), epoch.state_bytes, epoch.bytes_written.total),
    )


def _summed(part: EpochsSummed) -> Sequence[int]:
    count = max(1, part.epochs)
    phases = {"waiting": part.waited_s / count, "publish": part.publish_s / count}
    return (
        *(part.last, _ms(part.at), _SUMMED, _millis(part.duration_s / count)),
        *(_millis(phases.get(phase, 0.0)) for phase in PHASES),
        *(part.rows_in // count, part.rows_processed // count, part.rows_out // count, part.rows_in_flight_max),
        *(part.bytes_in_flight_max, _millis(part.barrier_delay_s_max), part.state_bytes, part.bytes_written // count),
    )


def _detail(epoch: EpochPublished) -> Json:
    return {
        "stages": {_name(name): _stage_figures(stage) for name, stage in list(epoch.stages.items())[:NAMES_MAX]},
        "edges": {
            _name(name): {
                "rows_in": edge.rows_in,
                "processed": edge.rows_processed,
                "spilled": edge.rows_spilled,
                "rows": edge.rows_in_flight,
                "bytes": edge.bytes_in_flight,
            }
            for name, edge in list(epoch.edges.items())[:NAMES_MAX]
        },
        "watermarks": {_name(name): _name(text) for name, text in list(epoch.watermarks.items())[:NAMES_MAX]},
        "scaling": {_name(name): _text(text) for name, text in list(epoch.scaling.items())[:NAMES_MAX]},
        "committed": epoch.committed,
        "batch": epoch.batch_id,
        "segments": epoch.segments_in_flight,
        "parallelism": {_name(name): count for name, count in list(epoch.parallelism.items())[:NAMES_MAX]},
    }


def _stage_figures(stage: StageFigures) -> Json:
    own = stage.subtasks
    return {
        "job": _millis(stage.job_s),
        "launched": stage.launched,
        "rows": stage.rows,
        "rows_out": stage.rows_out,
        "skew": _number(stage.skew),
        "cost_us": None if stage.row_cost_s is None else _number(stage.row_cost_s * 1e6),
        "memory": stage.memory_bytes,
        "subtasks": {
            "subtask": own.subtask,
            "rows": own.rows,
            "rows_out": own.rows_out,
            "opening": [number // 1000 for number in own.opening_us],
            "delivery": [number // 1000 for number in own.waiting_us],
            "stepping": [number // 1000 for number in own.stepping_us],
            "writing": [number // 1000 for number in own.writing_us],
            "elapsed": [number // 1000 for number in own.elapsed_us],
            "barrier": [number // 1000 for number in own.barrier_us],
        },
    }


# -- lists -------------------------------------------------------------------------------------------------------------


def _checkpoints(view: QueryView) -> list[Json]:
    return [
        {
            "checkpoint": part.checkpoint,
            "parent": part.parent,
            "generation": part.generation,
            "at": _ms(part.created_at),
            "rows": part.rows_in_flight,
            "bytes": part.bytes_in_flight,
            "segments": part.segments_in_flight,
            "state_files": sum(part.state_files.values()),
            "state_bytes": part.state_bytes,
            "uncommitted": max(map(len, part.uncommitted.values()), default=0),
        }
        for part in view.checkpoints
    ]


def _run(part: Run) -> Json:
    stopped = part.stopped
    return {
        "generation": part.generation,
        "at": None if part.claimed_at is None else _ms(part.claimed_at),
        "host": _name(part.host),
        "pid": part.pid,
        "library": _name(part.library),
        "restored": None if part.started is None else part.started.restored,
        "first": part.first,
        "last": part.last,
        "epochs": part.epochs,
        "stopped_at": None if stopped is None else _ms(stopped.at),
        "reason": None if stopped is None else stopped.reason,
    }


def _commit(part: Committed) -> Json:
    return {
        "sink": _name(part.sink),
        "at": _ms(part.at),
        "first": part.first,
        "last": part.last,
        "snapshot": part.snapshot,
        "rows": part.rows,
        "files": part.files,
        "ms": None if part.duration_s is None else _millis(part.duration_s),
        "found": part.found,
    }


def _upkeep(part: Any) -> Json:
    figures = ("manifests_merged", "files_compacted", "files_written", "snapshots_expired", "orphans_removed")
    return {
        "sink": _name(part.sink),
        "at": _ms(part.at),
        **{name: getattr(part, name) for name in (*figures, "bytes_removed")},
        "ms": _millis(part.duration_s),
        "notes": [_text(note) for note in part.notes[:10]],
        "held_by": None if part.held_by is None else _name(part.held_by),
    }


def _failure(part: Failure) -> Json:
    return {
        "at": _ms(part.at),
        "kind": part.kind,
        "where": _name(part.where),
        "code": part.code,
        "seen": _text(part.seen),
        "cause": _text(part.cause),
        "next_step": _text(part.next_step),
        "attempt": part.attempt,
        "fatal": part.fatal,
    }


def _marks(view: QueryView) -> list[Json]:
    """What is drawn on the timeline beside epochs."""
    marks = [
        *(mark for run in view.runs[-LISTED:] for mark in _run_marks(run)),
        *(
            (part.at, "rescale", f"{_name(part.stage)}: {part.old} to {part.new} subtasks")
            for part in view.rescales[-LISTED:]
        ),
        *((part.at, "failure", shortened(f"{part.kind}: {_text(part.seen)}", 160)) for part in view.failures[-LISTED:]),
        *(
            (part.at, "failure", f"{part.rows:,} rows in flight dropped on {_name(part.edge)}")
            for part in view.dropped[-LISTED:]
        ),
        *((part.at, "savepoint", f"savepoint of checkpoint {part.checkpoint}") for part in view.savepoints[-LISTED:]),
        *(
            (part.at, "commit", f"{_name(part.sink)}: checkpoints {part.first} to {part.last}")
            for part in view.commits[-2 * LISTED :]
        ),
    ]
    return [
        {"at": at, "kind": kind, "text": text} for at, kind, text in sorted((_ms(at), *rest) for at, *rest in marks)
    ]


def _run_marks(run: Run) -> Iterator[tuple[str, str, str]]:
    if run.claimed_at is not None:
        restored = None if run.started is None else run.started.restored
        begun = f"generation {run.generation} started"
        yield run.claimed_at, "start", begun if restored is None else f"{begun} from {restored}"
    if run.stopped is not None:
        yield run.stopped.at, "stop", f"generation {run.generation}: {run.stopped.reason}"


# -- values ------------------------------------------------------------------------------------------------------------


def _name(text: str) -> str:
    return shortened(printable(text[: 4 * NAME_MAX]), NAME_MAX)


def _text(text: str) -> str:
    return shortened(printable(text[: 4 * TEXT_MAX], lines=True), TEXT_MAX)


def _columns(columns: Sequence[tuple[str, str]]) -> list[list[str]]:
    return [[_name(name), _name(kind)] for name, kind in columns[:COLUMNS_MAX]]


def _ms(text: str) -> int:
    """Milliseconds since 1970; 0 for text that is no time."""
    try:
        return int(datetime.fromisoformat(text[:40]).timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0


def _millis(seconds: float) -> int:
    return round(max(0.0, seconds) * 1000)


def _number(value: float | None) -> float | None:
    """Three digits are enough for people. JSON knows neither NaN nor infinity; rounding may give the latter."""
    rounded = None if value is None else float(f"{value:.4g}")
    return rounded if rounded is not None and isfinite(rounded) else None


def names_of(view: QueryView) -> Mapping[str, str]:
    """Shown names of edges, and the real ones."""
    return {_name(edge.name): edge.name for edge in view.edges}
