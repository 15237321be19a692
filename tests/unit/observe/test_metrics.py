"""Metrics: a real parser reads them, and every expression of the dashboard and the alerts finds data in them."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import msgspec
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import penstock as pen
from penstock.engine.options import Config
from penstock.errors import ConfigError
from penstock.observe.events import Alive, CommitRetried, CommitSlow, Event, QueryStopped, SourceProgress, SourceSlow
from penstock.observe.figures import EdgeFigures, StageFigures
from penstock.observe.metrics import Metrics
from penstock.observe.metrics_server import MetricsServer
from penstock.protocol.ids import CheckpointId, Generation
from penstock.testing.inline import InlineRun
from tests.support.engine_jobs import FakeClock, batches_of, keyed_slow
from tests.unit.observe.test_events import AT, COMMITTED, EVENTS, PUBLISHED, STARTED
from tests.unit.test_architecture import ROOT

MONITORING = ROOT / "monitoring"
FULL: list[Event] = [
    STARTED,
    *EVENTS,
    msgspec.structs.replace(
        PUBLISHED,
        watermarks={"totals": AT},
        counters={"per_minute.late": 3, "parse.dead_letters": 1},
        edges={"clicks-to-totals": EdgeFigures(rows_in=10, rows_processed=5, rows_in_flight=5)},
        stages={"totals": StageFigures(job_s=1.0, stepping_s=0.5, launched=2, rows=10, rows_max=8, row_cost_s=1e-5)},
    ),
    COMMITTED,
    CommitRetried(at=AT, sink="shop.totals", first=CheckpointId(1), last=CheckpointId(1), attempt=1, message="x"),
    Alive(at=AT, generation=Generation(7), every_s=10.0, sources=(SourceProgress(source="kafka", behind=7),)),
]


def scraped(metrics: Metrics) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in families
        for sample in family.samples
    }


def fed(*events: Event) -> Metrics:
    metrics = Metrics()
    for event in events:
        metrics(event)
    return metrics


def sample_names(metrics: Metrics) -> set[str]:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {sample.name for family in families for sample in family.samples}


def expressions() -> list[str]:
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    return panels + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


def test_prometheus_own_parser_reads_the_figures_of_an_epoch() -> None:
    found = scraped(fed(*FULL))
    query = ("query", "totals")
    assert found[f"penstock_in_flight_rows{[('edge', 'clicks-to-totals'), query]}"] == 5
    assert found[f"penstock_stage_skew_ratio{[query, ('stage', 'totals')]}"] == 1.6
    assert found[f"penstock_source_behind_offsets{[query, ('source', 'kafka')]}"] == 7
    assert found[f"penstock_operator_count_total{[('counter', 'late'), ('operator', 'per_minute'), query]}"] == 3


@pytest.mark.parametrize("expression", expressions())
def test_every_expression_of_the_dashboard_and_the_alerts_names_metrics_that_have_data(expression: str) -> None:
    named = set(re.findall(r"penstock_[a-z_]+", expression))
    assert named
    assert named <= sample_names(fed(*FULL))


def test_names_follow_the_rules_of_prometheus() -> None:
    for family in fed(*FULL).registry.collect():
        assert re.fullmatch(r"penstock_[a-z][a-z_]*", family.name)
        assert not re.search(r"_(ms|us|minutes|kb|mb)(_|$)", family.name)
        assert all(sample.name.endswith("_total") or sample.name.endswith("_created") for sample in family.samples) or (
            family.type != "counter"
        )


def test_a_source_that_answers_again_and_a_commit_that_returns_are_no_trouble_any_more() -> None:
    slow = CommitSlow(at=AT, sink="s", what="commit", first=CheckpointId(1), last=CheckpointId(1), waited_s=9.0)
    silent = SourceSlow(at=AT, source="a", what="b", waited_s=9.0)
    before = scraped(fed(STARTED, slow, silent))
    assert before["penstock_source_silent[('query', 'totals')]"] == 1
    assert before["penstock_commit_slow[('query', 'totals'), ('sink', 's')]"] == 1
    after = scraped(
        fed(
            STARTED,
            slow,
            silent,
            msgspec.structs.replace(silent, answered=True),
            msgspec.structs.replace(COMMITTED, sink="s"),
        )
    )
    assert after["penstock_source_silent[('query', 'totals')]"] == 0
    assert after["penstock_commit_slow[('query', 'totals'), ('sink', 's')]"] == 0


def test_the_dashboard_is_what_its_script_prints() -> None:
    made = subprocess.run(
        [sys.executable, "scripts/grafana_dashboard.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(made.stdout) == json.loads((MONITORING / "grafana-dashboard.json").read_text())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with Debian's package prometheus")
def test_prometheus_own_tool_accepts_the_rules_and_the_metrics(tmp_path: Path) -> None:
    subprocess.run(["promtool", "check", "rules", str(MONITORING / "alerts.yml")], check=True)
    subprocess.run(["promtool", "check", "metrics"], input=fed(*FULL).exposition(), check=True)
    rules = {
        "groups": [
            {
                "name": "x",
                "rules": [{"record": f"r{n}", "expr": e.replace("$query", ".*")} for n, e in enumerate(expressions())],
            }
        ]
    }
    (tmp_path / "all.yml").write_text(yaml.safe_dump(rules))
    subprocess.run(["promtool", "check", "rules", str(tmp_path / "all.yml")], check=True)


def test_checkpoints_that_wait_for_their_commit_are_counted_and_those_without_a_table_are_not() -> None:
    name = "penstock_uncommitted_checkpoints[('query', 'totals')]"
    two = msgspec.structs.replace(PUBLISHED, uncommitted=2)
    assert scraped(fed(STARTED, two))[name] == 2
    assert scraped(fed(STARTED, two, msgspec.structs.replace(COMMITTED, last=PUBLISHED.checkpoint)))[name] == 0
    assert scraped(fed(STARTED, msgspec.structs.replace(PUBLISHED, committed=None)))[name] == 0


# -- the endpoint ------------------------------------------------------------------------------------------------------


def asked(port: int, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_the_endpoint_tells_metrics_health_and_readiness() -> None:
    server = MetricsServer("127.0.0.1", 0)
    try:
        server(STARTED)
        assert (asked(server.port, "/healthz")[0], asked(server.port, "/readyz")[0]) == (200, 503)
        server(PUBLISHED)
        assert asked(server.port, "/readyz")[0] == 200
        status, text = asked(server.port, "/metrics")
        assert status == 200
        assert b"penstock_rows_in_total" in text
        server(QueryStopped(at=AT, reason="stopped"))
        assert asked(server.port, "/healthz")[0] == 503
        assert asked(server.port, "/etc/passwd")[0] == 404
    finally:
        server.close()


def test_a_port_that_is_taken_is_refused_before_anything_is_changed(tmp_path: Path, table: str) -> None:
    server = MetricsServer("127.0.0.1", 0)
    clock = FakeClock()
    try:
        with pytest.raises(ConfigError, match="metrics="):
            InlineRun(batches_of(5, 1), clock).start(
                keyed_slow(clock, table), checkpoint=tmp_path / "new", metrics=f"127.0.0.1:{server.port}"
            )
    finally:
        server.close()
    assert not (tmp_path / "new").exists()


def test_a_query_serves_its_metrics_while_it_runs(tmp_path: Path, table: str) -> None:
    clock = FakeClock()
    probe = MetricsServer("127.0.0.1", 0)
    port = probe.port
    probe.close()
    seen: list[bytes] = []

    def scrape(event: Event) -> None:
        if isinstance(event, pen.events.EpochPublished):
            seen.append(asked(port, "/metrics")[1])

    run = InlineRun(batches_of(50, 3), clock)
    options = {"checkpoint": tmp_path, "metrics": f"127.0.0.1:{port}", "on_event": scrape}
    run.start(keyed_slow(clock, table), **options).await_termination(60)
    assert b"penstock_rows_in_total" in seen[-1]
    with pytest.raises(urllib.error.URLError):
        asked(port, "/metrics")


@pytest.mark.parametrize("written", [True, -1, 70_000, "here", "127.0.0.1:x"])
def test_what_is_no_port_is_refused(tmp_path: Path, written: object) -> None:
    with pytest.raises(ConfigError, match="metrics"):
        Config.of(tmp_path, metrics=written)  # type: ignore[typeddict-item]


def test_a_sink_whose_first_commit_fails_is_not_forgotten_when_another_one_commits() -> None:
    retried = CommitRetried(at=AT, sink="other", first=CheckpointId(1), last=CheckpointId(1), attempt=1, message="x")
    waiting = msgspec.structs.replace(PUBLISHED, uncommitted=3)
    committed = msgspec.structs.replace(COMMITTED, last=PUBLISHED.checkpoint)
    name = "penstock_uncommitted_checkpoints[('query', 'totals')]"
    assert scraped(fed(STARTED, waiting, retried, committed))[name] == 3
    both = msgspec.structs.replace(committed, sink="other")
    assert scraped(fed(STARTED, waiting, retried, committed, both))[name] == 0


def test_a_connection_that_asks_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.observe.metrics_server.IDLE_S", 0.2)
    server = MetricsServer("127.0.0.1", 0)
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as silent:
            assert silent.recv(1) == b""
    finally:
        server.close()
