"""A driver process: a Spark session that runs queries as it is told, until it is killed.

    python -m tests.chaos.driver MASTER FOLDER

Orders come by standard input, answers leave by standard output; what Spark and the JVM print goes to standard error.
SIGUSR1 prints the stacks of all threads there.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from pyspark.sql import SparkSession

import penstock as pen
from penstock.errors import PenstockError, QueryEnded
from penstock.observe.events import CommitRetried, EpochFailed, EpochPublished, Event, UpkeepFailed
from tests.chaos import messages
from tests.chaos.messages import Order, Told
from tests.chaos.shapes import SHAPES
from tests.chaos.soak_job import SOAK, soak_outputs
from tests.spark.matrix_data import make_input

BOUNDED_LISTS = (
    "spark_ui_retainedJobs",
    "spark_ui_retainedStages",
    "spark_ui_retainedTasks",
    "spark_sql_ui_retainedExecutions",
    "spark_sql_streaming_numRecentProgressUpdates",
)
"""What Spark remembers of the past, a thousand of each by default: a soak would watch them fill for minutes."""


class WallClock:
    """The process's wall clock, wrong by so much: processing time is read from it."""

    def __init__(self) -> None:
        self.wrong_ns = 0
        right_ns = time.time_ns
        time.time_ns = lambda: right_ns() + self.wrong_ns


class Server:
    """Does what it is told, one query at a time."""

    def __init__(self, spark: SparkSession, answers: BinaryIO) -> None:
        self._spark, self._answers = spark, answers
        self._lock = threading.Lock()
        self._clock = WallClock()
        self._query: pen.Query | None = None

    def serve(self, orders: BinaryIO) -> None:
        for line in orders:
            self._obey(messages.decode_order(line))

    def tell(self, told: Told) -> None:
        with self._lock:
            self._answers.write(messages.encode(told))

    def _obey(self, order: Order) -> None:
        match order:
            case messages.Start():
                self._start(order)
            case messages.Jump(clock_s):
                self._clock.wrong_ns = int(clock_s * 1e9)
            case messages.CancelJobs():
                self._spark.sparkContext.cancelAllJobs()
            case messages.Measure():
                self._measure()
            case messages.Stop(drain) if self._query is not None:
                self._query._supervisor.request_stop(drain=drain)
            case messages.Rescale(parallelism) if self._query is not None:
                with suppress(QueryEnded):
                    self._query.rescale(parallelism)

    def _start(self, order: messages.Start) -> None:
        self._clock.wrong_ns = int(order.clock_s * 1e9)
        try:
            query = self.begin(order)
        except PenstockError as error:
            self.tell(messages.Refused(error.code, str(error)))
        except Exception:  # noqa: BLE001 - whatever it is, whoever gave the order must learn it
            self.tell(messages.Refused("", traceback.format_exc()))
        else:
            self._query = query
            self.tell(messages.Started(query.generation))
            threading.Thread(target=self._watch, args=(query,), daemon=True).start()

    def begin(self, order: messages.Start) -> pen.Query:
        folder = Path(order.folder)
        if order.shape == SOAK:
            outputs, options = soak_outputs(self._spark, folder, order.cost_s), {}
        else:
            shape = SHAPES[order.shape]
            outputs, options = shape.build(self._spark, folder, order.cost_s), dict(shape.options)
        return pen.start(
            *outputs,
            checkpoint=folder / "checkpoint",
            parallelism=order.parallelism,
            epoch=order.epoch_s,
            trigger="available_now" if order.finish else 0.1,
            restore=order.restore,
            on_event=self._listen,
            **options,
        )

    def _watch(self, query: pen.Query) -> None:
        try:
            query.await_termination()
        except PenstockError as error:
            self.tell(messages.Ended(error.code, str(error)))
        except Exception:  # noqa: BLE001 - as above
            self.tell(messages.Ended("none", traceback.format_exc()))
        else:
            self.tell(messages.Ended(in_flight=query.manifest().rows_in_flight))

    def _listen(self, event: Event) -> None:
        match event:
            case EpochPublished():
                self.tell(
                    messages.Epoch(
                        int(event.checkpoint),
                        event.kind,
                        event.rows_in,
                        event.rows_in_flight,
                        event.duration_s,
                        event.bytes_written.manifest,
                    )
                )
            case EpochFailed():
                self.tell(messages.Failed("epoch", event.message))
            case CommitRetried():
                self.tell(messages.Failed("commit", event.message))
            case UpkeepFailed():
                self.tell(messages.Failed("upkeep", event.message))

    def _measure(self) -> None:
        jvm = self._spark.sparkContext._jvm
        assert jvm is not None
        jvm.System.gc()
        beans = jvm.java.lang.management.ManagementFactory
        heap = beans.getMemoryMXBean().getHeapMemoryUsage().getUsed()
        self.tell(messages.Measured(heap, beans.getThreadMXBean().getThreadCount()))


def warm_up(server: Server, folder: Path) -> None:
    """A first query loads classes and starts workers, which takes longer than everything a run does."""
    make_input(("a",), 20, seed=0, files=1).write(folder / "in")
    order = messages.Start(shape="pipeline", folder=str(folder), cost_s=0.0, parallelism=2, epoch_s=1.0, finish=True)
    server.begin(order).await_termination()


def main(master: str, folder: Path) -> None:
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    faulthandler.register(signal.SIGUSR1)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    spark = pen.session(
        master,
        "penstock-chaos",
        spark_driver_bindAddress="127.0.0.1",
        spark_sql_shuffle_partitions="2",
        spark_ui_enabled="false",
        spark_executor_memory="600m",
        spark_deploy_maxExecutorRetries="-1",
        **dict.fromkeys(BOUNDED_LISTS, "50"),
    )
    server = Server(spark, answers)
    warm_up(server, folder)
    server.tell(messages.Ready())
    server.serve(sys.stdin.buffer)
    # Whoever gave the orders is gone: so is this process, without a last epoch.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
