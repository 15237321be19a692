"""Epochs and commits as spans of OpenTelemetry. Whoever has a tracer has its package; nothing else here needs it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from penstock.observe.condense import seconds_of
from penstock.observe.events import Committed, EpochFailed, EpochPublished, Event, QueryStarted
from penstock.observe.figures import StageFigures

_NANOS = 1_000_000_000


class Spans:
    """A listener for `start(on_event=…)`: a span for each epoch, with one for each stage in it, and for each commit.

    `tracer` is one of OpenTelemetry: ``opentelemetry.trace.get_tracer("orders")``.
    """

    def __init__(self, tracer: Any) -> None:
        self._tracer, self._query = tracer, ""

    def __call__(self, event: Event) -> None:
        match event:
            case QueryStarted():
                self._query = event.name
            case EpochPublished() if event.kind != "takeover":
                self._epoch(event)
            case EpochFailed():
                self._failed(event)
            case Committed() if event.duration_s is not None:
                told = {"sink": event.sink, "first": event.first, "last": event.last, "rows": event.rows}
                end = _nanos(event.at)
                self._span("commit", end - round(event.duration_s * _NANOS), told).end(end_time=end)
            case _:
                pass

    def _epoch(self, event: EpochPublished) -> None:
        """Stages run one after another, so each begins where the one before ended."""
        end = _nanos(event.at)
        begin = end - round(event.duration_s * _NANOS)
        told = {
            "checkpoint": event.checkpoint,
            "kind": event.kind,
            "rows_in": event.rows_in,
            "rows_processed": event.rows_processed,
            "rows_out": event.rows_out,
            "rows_in_flight": event.rows_in_flight,
            "bytes_written": event.bytes_written.total,
            "barrier_fired": event.barrier_fired,
            "barrier_delay_s": event.barrier_delay_s,
        }
        span = self._span("epoch", begin, told)
        inside = import_module("opentelemetry.trace").set_span_in_context(span)
        for name, stage in event.stages.items():
            until = min(end, begin + round(stage.job_s * _NANOS))
            self._span(f"stage {name}", begin, _told(stage), inside).end(end_time=until)
            begin = until
        span.end(end_time=end)

    def _failed(self, event: EpochFailed) -> None:
        trace, at = import_module("opentelemetry.trace"), _nanos(event.at)
        span = self._span("epoch", at, {"checkpoint": event.checkpoint, "attempt": event.attempt, "code": event.code})
        span.set_status(trace.Status(trace.StatusCode.ERROR, event.message))
        span.end(end_time=at)

    def _span(self, name: str, begin: int, told: dict[str, Any], inside: Any = None) -> Any:
        attributes = {"penstock.query": self._query, **{f"penstock.{key}": value for key, value in told.items()}}
        return self._tracer.start_span(name, context=inside, start_time=begin, attributes=attributes)


def _told(stage: StageFigures) -> dict[str, Any]:
    told = {
        "subtasks": stage.launched,
        "rows": stage.rows,
        "skew": stage.skew,
        "outside_s": stage.outside_s,
        "opening_s": stage.opening_s,
        "delivery_s": stage.waiting_s,
        "stepping_s": stage.stepping_s,
        "writing_s": stage.writing_s,
    }
    return {name: value for name, value in told.items() if value is not None}


def _nanos(at: str) -> int:
    return round((seconds_of(at) or 0.0) * 1_000_000) * 1000
