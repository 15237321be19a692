"""Which PySpark is there. It is a peer of Penstock and not a dependency: on a cluster the Spark that is there counts.

Nothing here imports PySpark before it has been found, so that a missing one is told in words.
"""

from __future__ import annotations

import logging
import re
from importlib.util import find_spec
from typing import Any

from penstock.errors import SparkSetupError

OLDEST, NEWEST = (4, 1), (4, 3)
PIP = f"pip install 'pyspark>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}'"

_log = logging.getLogger("penstock")
_warned: set[str] = set()


def require_pyspark() -> None:
    """Raises: `SparkSetupError` when there is no PySpark, or one that is too old."""
    if find_spec("pyspark") is None:
        raise SparkSetupError(
            "the package pyspark is not installed",
            cause="Penstock brings none along, because on a cluster the Spark that is there counts",
            next_step=f"{PIP} (or pip install 'penstock[spark]'), on the driver and on the executors",
        )
    from pyspark import __version__

    require_version(str(__version__))


def require_version(version: str) -> None:
    """Raises: `SparkSetupError` for a PySpark that is too old. A newer one than was tested gets a warning, once.

    >>> require_version("4.1.0")
    """
    if _of(version) < OLDEST:
        raise SparkSetupError(
            f"PySpark {version} is installed",
            cause=f"Penstock runs on Spark {_text(OLDEST)} to {_text(NEWEST)}: an older one lacks what it needs",
            next_step=f"{PIP}, on the driver and on the executors, and use a cluster of that version",
            version=version,
        )
    if _of(version) > NEWEST and version not in _warned:
        _warned.add(version)
        _log.warning("PySpark %s is newer than %s, the newest that was tested", version, _text(NEWEST))


def require_classic(frame: Any) -> None:
    """Raises: `SparkSetupError` for a DataFrame, or a session, of Spark Connect."""
    if "connect" in type(frame).__module__.split("."):
        raise SparkSetupError(
            "the session is one of Spark Connect",
            cause="SPARK_REMOTE is set, or the session was made with builder.remote(…); Penstock needs the JVM of"
            " the driver, and a Connect client has none",
            next_step="run the program where the driver is: spark-submit, or builder.master(…) without SPARK_REMOTE",
        )


def _of(version: str) -> tuple[int, ...]:
    """
    >>> _of("4.3.0.dev1")
    (4, 3)
    """
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
