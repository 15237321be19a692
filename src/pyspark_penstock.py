"""Keeps Spark's Python workers from printing tracebacks about connections that Spark itself has closed.

Spark closes the connection to a worker when a query is stopped, a job is cancelled, planning is done or the program
ends. The worker finds that out when it sends its last bytes, and prints a traceback of a broken pipe into the user's
terminal. Nobody waits for those bytes. So the worker's main module, which is Spark's daemon, passes over such errors.
All others are printed as before.

Spark imports every module whose name begins with ``pyspark_`` in the worker that looks for data sources. That is why
this file is not inside the package, and why it imports nothing of it. Workers of subtasks call `keep_quiet` themselves.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

DAEMON = "pyspark/daemon.py"


class _Quiet:
    """The module `traceback`, which says nothing about connections that Spark has closed."""

    def print_exc(self, *arguments: Any, **options: Any) -> None:
        if not isinstance(sys.exception(), BrokenPipeError | ConnectionResetError):
            traceback.print_exc(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)


def keep_quiet() -> None:
    """To be called inside a worker: the main module of its process is then Spark's daemon, which it was forked from."""
    main = sys.modules.get("__main__")
    path = str(getattr(main, "__file__", "")).replace("\\", "/")
    if main is not None and path.endswith(DAEMON) and getattr(main, "traceback", None) is traceback:
        main.traceback = _Quiet()  # type: ignore[attr-defined]


keep_quiet()
