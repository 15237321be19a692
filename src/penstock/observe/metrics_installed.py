"""Whether Prometheus metrics can be served: the package prometheus-client is an extra."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.observe.metrics_server import MetricsServer


def open_metrics(host: str, port: int) -> MetricsServer:
    """Raises: `ConfigError` when the package is missing or the port cannot be had."""
    try:
        from penstock.observe.metrics_server import MetricsServer
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        raise ConfigError(
            f"metrics={port}",
            cause="the package prometheus-client is not installed",
            next_step="pip install 'penstock[metrics]' on the driver, or leave metrics= out",
        ) from error
    return MetricsServer(host, port)
