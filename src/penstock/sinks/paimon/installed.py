"""Whether pypaimon is there: it is an extra, and `import penstock` works without it."""

from __future__ import annotations

from importlib.util import find_spec

from penstock.errors import ConfigError


def require_pypaimon(what: str) -> None:
    """Looks without importing it, which would take a second.

    Raises: `ConfigError`.
    """
    if find_spec("pypaimon") is None:
        raise ConfigError(
            f"{what} needs the package pypaimon, which is not installed",
            cause="Paimon tables are an extra of Penstock",
            next_step="pip install 'penstock[paimon]', on the driver and on the executors",
        )
