"""Prints the Grafana dashboard: ``python scripts/grafana_dashboard.py > monitoring/grafana-dashboard.json``."""

from __future__ import annotations

import json
from typing import Any

QUERY = '{query=~"$query"}'


def quantile(share: float, metric: str, label: str) -> str:
    """Of a histogram, over five minutes."""
    return f"histogram_quantile({share}, sum by (le, {label}) (rate(penstock_{metric}_bucket{QUERY}[5m])))"


PANELS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("Running", "none", ((f"penstock_up{QUERY}", "{{query}}"),)),
    (
        "Age of the newest checkpoint",
        "s",
        ((f"time() - penstock_last_checkpoint_timestamp_seconds{QUERY}", "{{query}}"),),
    ),
    (
        "Rows per second",
        "short",
        (
            (f"rate(penstock_rows_in_total{QUERY}[1m])", "in {{query}}"),
            (f"rate(penstock_rows_processed_total{QUERY}[1m])", "processed {{query}}"),
            (f"rate(penstock_rows_out_total{QUERY}[1m])", "out {{query}}"),
        ),
    ),
    (
        "Time of an epoch",
        "s",
        (
            (
                quantile(0.5, "epoch_duration_seconds", "query"),
                "p50 {{query}}",
            ),
            (
                quantile(0.99, "epoch_duration_seconds", "query"),
                "p99 {{query}}",
            ),
        ),
    ),
    (
        "Where the time goes",
        "s",
        ((f"sum by (phase) (rate(penstock_epoch_phase_seconds_total{QUERY}[1m]))", "{{phase}}"),),
    ),
    ("Backlog", "s", ((f"penstock_backlog_seconds{QUERY}", "{{edge}}"),)),
    ("Rows in flight", "short", ((f"penstock_in_flight_rows{QUERY}", "{{edge}}"),)),
    ("Bytes in flight", "bytes", ((f"penstock_in_flight_bytes{QUERY}", "{{edge}}"),)),
    ("Watermark lag", "s", ((f"penstock_watermark_lag_seconds{QUERY}", "{{stage}}"),)),
    (
        "Barrier delay",
        "s",
        (
            (
                quantile(0.99, "barrier_delay_seconds", "query"),
                "p99 {{query}}",
            ),
        ),
    ),
    ("Skew", "none", ((f"penstock_stage_skew_ratio{QUERY}", "{{stage}}"),)),
    ("Cost of a row", "s", ((f"penstock_stage_row_cost_seconds{QUERY}", "{{stage}}"),)),
    ("Subtasks", "none", ((f"penstock_stage_subtasks{QUERY}", "{{stage}}"),)),
    ("State", "bytes", ((f"penstock_state_bytes{QUERY}", "{{query}}"),)),
    (
        "Bytes written by checkpoints",
        "Bps",
        ((f"sum by (kind) (rate(penstock_checkpoint_bytes_total{QUERY}[1m]))", "{{kind}}"),),
    ),
    (
        "Memory",
        "bytes",
        ((f"penstock_worker_memory_bytes{QUERY}", "{{stage}}"), (f"penstock_driver_memory_bytes{QUERY}", "driver")),
    ),
    ("Uncommitted checkpoints", "none", ((f"penstock_uncommitted_checkpoints{QUERY}", "{{query}}"),)),
    (
        "Time of a commit",
        "s",
        (
            (
                quantile(0.99, "commit_duration_seconds", "sink"),
                "p99 {{sink}}",
            ),
        ),
    ),
    ("Counted by operators", "short", ((f"penstock_operator_count_total{QUERY}", "{{operator}} {{counter}}"),)),
    ("Offsets behind", "short", ((f"penstock_source_behind_offsets{QUERY}", "{{source}}"),)),
    (
        "Trouble",
        "short",
        (
            (f"sum by (code) (increase(penstock_epoch_failures_total{QUERY}[5m]))", "epoch failed {{code}}"),
            (f"increase(penstock_storage_retries_total{QUERY}[5m])", "storage {{query}}"),
            (f"sum by (sink) (increase(penstock_commit_retries_total{QUERY}[5m]))", "commit {{sink}}"),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    panels = [
        {
            "id": number + 1,
            "type": "timeseries",
            "title": title,
            "datasource": source,
            "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
            "gridPos": {"h": 8, "w": 8, "x": 8 * (number % 3), "y": 8 * (number // 3)},
            "targets": [
                {"refId": "ABCDEF"[place], "expr": expression, "legendFormat": legend, "datasource": source}
                for place, (expression, legend) in enumerate(targets)
            ],
        }
        for number, (title, unit, targets) in enumerate(PANELS)
    ]
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
        {
            "name": "query",
            "type": "query",
            "label": "Query",
            "datasource": source,
            "query": "label_values(penstock_up, query)",
            "refresh": 2,
            "multi": True,
            "includeAll": True,
        },
    ]
    return {
        "title": "Penstock",
        "uid": "penstock",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "tags": ["penstock", "streaming"],
        "templating": {"list": variables},
        "panels": panels,
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=2))
