"""Jobs for processes of their own: a second driver, and a cluster of real executors that may be killed.

Run as ``python -m tests.support.spark_jobs NAME FOLDER``; `running` starts one and leaves nothing of it behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import penstock as pen
from penstock.spark.quirks.logfiles import QUICK, SETTING
from tests.support.spark_streams import TIMEOUT_S, busy, epochs, paimon, stream
from tests.support.standalone import Standalone

PARALLELISM = 4


class Recorded(pen.KeyedProcess):
    """Numbers each user's rows, and leaves a file for each attempt of each subtask: ``<subtask>-<attempt>``."""

    output = "user bigint, number bigint, nth bigint"
    seen = pen.value_state("bigint")

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def process(self, key, rows, state, out):
        from pyspark import TaskContext

        context = TaskContext.get()
        Path(self.folder, f"{context.partitionId()}-{context.taskAttemptId()}").touch()
        nth = state.seen or 0
        for row in rows:
            self.meet(row["number"])
            nth += 1
            out.emit(user=row["user"], number=row["number"], nth=nth)
        state.seen = nth

    def meet(self, number: int) -> None:
        """Does what a test is about when it sees a certain row."""

    def first_time(self, what: str) -> bool:
        """True once, whichever process asks."""
        try:
            os.close(os.open(Path(self.folder, what), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def attempts_in(folder: Path) -> dict[int, int]:
    """How many attempts of each subtask called user code."""
    subtasks = [int(path.name.partition("-")[0]) for path in folder.iterdir() if path.name[0].isdigit()]
    return {subtask: subtasks.count(subtask) for subtask in subtasks}


class KillsExecutor(Recorded):
    """Once, in the middle of a subtask, the executor under it is gone, with what it held for the shuffle."""

    def meet(self, number):
        busy(0.001)
        if number == 150 and self.first_time("killed"):
            daemon = os.getppid()
            executor = subprocess.check_output(["ps", "-o", "ppid=", "-p", str(daemon)], text=True)
            os.kill(int(executor), signal.SIGKILL)


class Hangs(Recorded):
    """The first attempt that meets a certain row does not go on by itself."""

    def meet(self, number):
        if number == 40 and self.first_time("hung"):
            time.sleep(600)


# -- the jobs ----------------------------------------------------------------------------------------------------------


def take_over(folder: Path) -> None:
    """A driver on a checkpoint that another one may hold."""
    spark = pen.session("local[2]", spark_ui_enabled="false")
    finish_numbering(spark, folder, process=Recorded(str(folder / "second")), epoch="1 s")
    spark.stop()


def cluster(folder: Path) -> None:
    """Two queries on two executors: one whose executors are killed, one with a subtask that hangs."""
    with Standalone(Path(os.environ["SPARK_LOCAL_DIRS"]), apart=False) as standalone:
        # Spark speculates on another *host* only; one machine can have two names.
        for host in ("127.0.0.1", "localhost"):
            standalone.add_worker(host)
        spark = pen.session(
            standalone.master,
            spark_ui_enabled="false",
            spark_executor_memory="600m",
            spark_speculation="true",
            spark_speculation_interval="100ms",
            spark_speculation_minTaskRuntime="500ms",
            spark_speculation_quantile="0.5",
            spark_task_reaper_enabled="true",  # a losing attempt must not hold its slot until it wakes up
            spark_task_reaper_killTimeout="2s",
        )
        for name, process in (("killed", KillsExecutor), ("hung", Hangs)):
            (folder / name).mkdir()
            finish_numbering(spark, folder, process=process(str(folder / name)), table=f"shop.{name}", epoch="500 ms")
        spark.stop()


def bucket(folder: Path) -> None:
    """Running totals with their checkpoint on an object store; the driver and its JVM die after the fifth epoch."""
    spark = pen.session("local[2]", spark_ui_enabled="false")
    mount(spark, folder)
    published: list = []

    def die_after_five(event) -> None:
        published.extend(epochs([event]))
        if len(published) == 5:
            os.killpg(0, signal.SIGKILL)

    finish_totals(spark, folder, on_event=die_after_five, parallelism=2)


BUCKET = "penstock-tests"


def mount(spark, folder: Path) -> None:
    """Lets Spark reach the bucket's objects as files: no connector is needed in the tests."""
    (folder / "served" / BUCKET).mkdir(parents=True, exist_ok=True)
    spark.conf.set("fs.s3a.impl", "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme")
    spark.conf.set(f"fs.viewfs.mounttable.{BUCKET}.link./totals", (folder / "served" / BUCKET / "totals").as_uri())
    spark.conf.set(SETTING, QUICK)  # the other one of Spark's own looks for a second class of the connector


def finish_totals(spark, folder: Path, **options) -> None:
    """Each epoch takes one file, so what it adds to the table is known."""
    totals = (
        pen.read(stream(spark, folder / "in"))
        .key_by("user")
        .aggregate(n=pen.count(), total=pen.sum("number"), name="totals")
    )
    query = totals.write(paimon(folder)).start(f"s3://{BUCKET}/totals", epoch=None, trigger="available_now", **options)
    assert query.await_termination(TIMEOUT_S), "the query hangs"


def finish_numbering(spark, folder: Path, *, process, table: str = "shop.rows", epoch: str) -> None:
    checkpoint = "checkpoint" if table == "shop.rows" else f"checkpoint-{table}"
    numbered = pen.read(stream(spark, folder / "in")).key_by("user").process(process, name="number")
    query = numbered.write(paimon(folder, table)).start(
        folder / checkpoint, parallelism=PARALLELISM, epoch=epoch, trigger="available_now"
    )
    query.await_termination()


# -- for the parent ----------------------------------------------------------------------------------------------------


@contextmanager
def running(job: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A job in a session of its own; whatever is left of it at the end is killed."""
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.spark_jobs", job, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "SPARK_LOCAL_DIRS": str(scratch)},
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def run(job: str, folder: Path, timeout_s: float = 240) -> None:
    with running(job, folder) as process:
        output, _ = process.communicate(timeout=timeout_s)
        assert process.returncode == 0, output[-5000:]


if __name__ == "__main__":
    {"take_over": take_over, "cluster": cluster, "bucket": bucket}[sys.argv[1]](Path(sys.argv[2]))
