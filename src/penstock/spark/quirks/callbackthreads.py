"""PySpark keeps a thread and a socket in the driver for every streaming query with a Python handler, for ever.

The JVM calls the handler from the thread of its query. Py4J gives each such thread a connection of its own, and Python
a thread that serves it. When the query has ended, that thread of the JVM is gone, but its connection stays open. So the
Python end is closed here; the thread that serves it then ends.

Seen in Spark 4.3.0 with Py4J 0.10.9.9, and only where threads are pinned, which is the default. Elsewhere connections
are shared and stay as they are.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from py4j.clientserver import ClientServerConnection
from pyspark import SparkContext


class CallbackThread:
    """The thread of the driver in which one streaming query calls its handler."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._connection: Any = None
        self._ended = False

    @contextmanager
    def handling(self) -> Iterator[None]:
        """The handler runs, in this thread."""
        with self._lock:
            self._connection = None
        try:
            yield
        finally:
            with self._lock:
                self._connection = self._of_this_thread()
                self._close()

    def end(self) -> None:
        """The query has ended. A handler that still runs is not disturbed: its thread ends after it."""
        with self._lock:
            self._ended = True
            self._close()

    def _close(self) -> None:
        if not self._ended or self._connection is None:
            return
        with suppress(OSError, AttributeError):  # closed already
            self._connection.socket.shutdown(socket.SHUT_RDWR)

    def _of_this_thread(self) -> Any:
        client: Any = getattr(self._context._gateway, "_gateway_client", None)  # noqa: SLF001 - no public way to it
        found = client.get_thread_connection() if hasattr(client, "get_thread_connection") else None
        called = isinstance(found, ClientServerConnection) and not found.initiated_from_client
        return found if called else None
