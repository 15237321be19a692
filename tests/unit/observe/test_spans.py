"""Epochs and commits as spans of OpenTelemetry, with a tracer that only remembers (G4)."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock.observe.condense import seconds_of
from penstock.observe.events import EpochFailed
from penstock.observe.figures import StageFigures
from penstock.observe.spans import Spans
from penstock.protocol.ids import CheckpointId
from tests.unit.observe.test_events import AT, COMMITTED, PUBLISHED, STARTED


@dataclass
class Span:
    name: str
    parent: Span | None
    begin: int
    attributes: dict[str, Any]
    finished: int = 0
    status: Any = None

    def end(self, end_time: int) -> None:
        self.finished = end_time

    def set_status(self, status: Any) -> None:
        self.status = status


@dataclass
class Tracer:
    spans: list[Span] = field(default_factory=list)

    def start_span(self, name: str, context: Span | None, start_time: int, attributes: dict[str, Any]) -> Span:
        self.spans.append(Span(name, context, start_time, attributes))
        return self.spans[-1]


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> Tracer:
    package, trace = ModuleType("opentelemetry"), ModuleType("opentelemetry.trace")
    trace.set_span_in_context = lambda span: span  # type: ignore[attr-defined]
    trace.Status = lambda code, message: (code, message)  # type: ignore[attr-defined]
    trace.StatusCode = SimpleNamespace(ERROR="error")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "opentelemetry", package)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", trace)
    return Tracer()


def test_an_epoch_is_a_span_with_its_stages_one_behind_the_other(tracer: Tracer) -> None:
    stages = {"clean": StageFigures(job_s=0.25, launched=2, rows=10, rows_max=8), "totals": StageFigures(job_s=0.5)}
    spans = Spans(tracer)
    spans(STARTED)
    spans(msgspec.structs.replace(PUBLISHED, duration_s=1.0, stages=stages))
    epoch, clean, totals = tracer.spans
    assert epoch.finished // 1000 == round((seconds_of(AT) or 0.0) * 1e6)
    assert epoch.finished - epoch.begin == 10**9
    assert (clean.parent, totals.parent) == (epoch, epoch)
    assert clean.begin == epoch.begin
    assert clean.finished - clean.begin == 250_000_000
    assert totals.begin == clean.finished
    assert totals.finished - totals.begin == 500_000_000
    assert epoch.attributes["penstock.query"] == "totals"
    assert epoch.attributes["penstock.checkpoint"] == PUBLISHED.checkpoint
    assert clean.attributes["penstock.skew"] == 1.6
    assert "penstock.skew" not in totals.attributes, "an attribute without a value is refused by OpenTelemetry"


def test_a_commit_is_a_span_of_its_own_and_a_failed_attempt_an_error(tracer: Tracer) -> None:
    spans = Spans(tracer)
    spans(msgspec.structs.replace(COMMITTED, duration_s=2.0))
    spans(EpochFailed(at=AT, checkpoint=CheckpointId(7), attempt=1, code="PEN-033", message="executor lost"))
    commit, failed = tracer.spans
    assert commit.finished - commit.begin == 2 * 10**9
    assert (commit.name, failed.name, failed.status) == ("commit", "epoch", ("error", "executor lost"))


def test_a_takeover_is_no_epoch(tracer: Tracer) -> None:
    Spans(tracer)(msgspec.structs.replace(PUBLISHED, kind="takeover"))
    assert tracer.spans == []
