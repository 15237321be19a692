"""A real Prometheus scrapes a query: every expression of the dashboard gives data, every alert fires when it should."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.observe.metrics_server import MetricsServer
from tests.unit.observe.test_metrics import FULL, MONITORING, PUBLISHED, expressions

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="prometheus and promtool come with Debian's package prometheus",
)

TIMEOUT_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[str]:
    """A Prometheus that scrapes a query every 200 ms; its address."""
    server = MetricsServer("127.0.0.1", 0)
    target = {"job_name": "penstock", "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}]}
    config = {
        "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "1s"},
        "rule_files": [str(MONITORING / "alerts.yml")],
        "scrape_configs": [target],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    for event in FULL[:-1]:
        server(event)
    with subprocess.Popen(command) as process:
        try:
            address = f"http://127.0.0.1:{port}"
            await_data(address)
            for event in (*FULL[1:], PUBLISHED):  # figures that change between two scrapes have a rate
                server(event)
            yield address
        finally:
            process.terminate()
            server.close()


def asked(address: str, path: str, **parameters: str) -> Any:
    with urllib.request.urlopen(f"{address}{path}?{urllib.parse.urlencode(parameters)}", timeout=10) as answer:
        return json.load(answer)["data"]


def found(address: str, expression: str) -> list[Any]:
    result: list[Any] = asked(address, "/api/v1/query", query=expression.replace("$query", ".*"))["result"]
    return result


def await_data(address: str) -> None:
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        try:
            if len(found(address, "penstock_up[1m]")) and len(found(address, "penstock_up[1m]")[0]["values"]) > 1:
                return
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.1)
    raise TimeoutError("Prometheus has scraped nothing")


def test_a_real_prometheus_finds_data_for_every_panel_and_loads_every_alert(prometheus: str) -> None:
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    until = time.monotonic() + TIMEOUT_S
    empty = panels
    while empty and time.monotonic() < until:
        empty = [expression for expression in empty if not found(prometheus, expression)]
        time.sleep(0.2)
    assert empty == []
    (group,) = asked(prometheus, "/api/v1/rules")["groups"]
    assert len(group["rules"]) == len(expressions()) - len(panels)
    while any(rule["health"] == "unknown" for rule in asked(prometheus, "/api/v1/rules")["groups"][0]["rules"]):
        assert time.monotonic() < until
        time.sleep(0.2)
    (group,) = asked(prometheus, "/api/v1/rules")["groups"]
    assert [rule["name"] for rule in group["rules"] if rule["health"] != "ok"] == []


def test_each_alert_fires_when_it_should_and_a_healthy_query_wakes_nobody() -> None:
    subprocess.run(["promtool", "check", "rules", "alerts.yml"], cwd=MONITORING, check=True)
    subprocess.run(["promtool", "test", "rules", "alerts.test.yml"], cwd=MONITORING, check=True)


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
    cases = yaml.safe_load((MONITORING / "alerts.test.yml").read_text())["tests"]
    firing = {
        *(alert["alertname"] for case in cases for alert in case.get("alert_rule_test", []) if alert["exp_alerts"]),
        *(
            sample["labels"].split('"')[1]
            for case in cases
            for expression in case.get("promql_expr_test", [])
            for sample in expression["exp_samples"]
        ),
    }
    assert firing == {rule["alert"] for rule in rules}
