"""Many changes of programs on real Spark, each with a backlog in flight and a kill in the first epoch after it.

All programs run until some rows are in flight, and stop. A second process starts all changed programs, and is killed
with SIGKILL while each of them is in its first epoch. Then they start again, run to the end, and their tables are
compared with what the guide promises. ``make changes N=60 SEED=1``, or ``ARGS="--only renamed"``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import click
from pyspark.sql import SparkSession

import penstock as pen
from penstock.engine.checkpoints import Checkpoints
from penstock.protocol.manifest import Manifest
from penstock.sinks.paimon.open import find_table
from penstock.store import open_store
from tests.support.changing_programs import FILES, ROWS, USERS, Case, Program, Row, cases, outputs_of, wrong
from tests.support.spark_streams import Milestone, numbered, paimon, rows_in, stream, write_files

AT_ONCE = 4
"""Queries that run at the same time: each has little to do, and two cores are soon busy."""
IN_FLIGHT = 100
SLOW_S = 0.02
"""For a row, before the change: most rows are still in flight after the few epochs until the stop."""
STARTED = "all started"
HANGS = "PENSTOCK_CHANGES_HANG"
"""Where it is set, the first epoch does not end: the process is killed in it."""
T = TypeVar("T")


@dataclass
class Changes:
    """Some cases in one folder."""

    folder: Path
    cases: list[Case]
    at_change: dict[int, Manifest] = field(default_factory=dict)
    tables: dict[int, dict[str, list[Row]]] = field(default_factory=dict)

    def prefix(self, case: Case, *, after: bool = False) -> str:
        return f"c{case.number}{'f' if after and case.how == 'fork' else ''}"

    def home(self, case: Case, *, after: bool = False) -> Path:
        return self.folder / f"checkpoint-{case.number}{'-moved' if after and case.how != 'restart' else ''}"

    def read(self, case: Case, table: str, *, after: bool) -> list[Row]:
        name = f"{self.prefix(case, after=after)}_{table}"
        if find_table(str(self.folder / "lake"), f"shop.{name}") is None:
            return []
        return rows_in(self.folder, f"shop.{name}")

    def _outputs(self, program: Program, spark: SparkSession, prefix: str, row_s: float) -> list[pen.Output]:
        frame = stream(spark, self.folder / "in")
        if program.column:
            frame = frame.selectExpr("*", "cast(null as double) as price")

        def spend() -> None:
            if HANGS in os.environ:
                _hang()
            time.sleep(row_s)  # several queries share two cores

        orders = pen.read(frame, name="orders")
        return outputs_of(program, orders, lambda table: paimon(self.folder, f"shop.{prefix}_{table}"), spend)

    # -- the steps -----------------------------------------------------------------------------------------------

    def make_backlogs(self, spark: SparkSession) -> None:
        write_files(self.folder / "in", numbered(ROWS, FILES, USERS))
        self._each(lambda case: self._make_backlog(spark, case))

    def _make_backlog(self, spark: SparkSession, case: Case) -> None:
        outputs = self._outputs(case.before, spark, self.prefix(case), SLOW_S)
        backlog = Milestone(lambda epoch: epoch.rows_in_flight > IN_FLIGHT)
        query = pen.start(
            *outputs,
            checkpoint=self.home(case),
            parallelism=2,
            trigger="available_now",
            epoch="200 ms",
            on_event=backlog,
        )
        backlog.wait(query)
        saved = self.folder / f"savepoint-{case.number}"
        query.stop(savepoint=saved if case.how == "savepoint" else None)
        manifest = query.manifest()
        assert manifest.rows_in_flight > 0, f"{case.name}: nothing is in flight"
        self.at_change[case.number] = manifest
        names = ("rows", "copy", "totals_n", "totals_n_total")
        self.tables[case.number] = {name: self.read(case, name, after=False) for name in names}

    def start_changed(self, spark: SparkSession, case: Case, **more: Any) -> pen.Query:
        outputs = self._outputs(case.after, spark, self.prefix(case, after=True), 0.0)
        options = case.options()
        if not Checkpoints(open_store(str(self.home(case, after=True)))).ids() or not self._took_over(case):
            options |= self._first_start(case)
        else:
            options.pop("reset", None)
        return pen.start(
            *outputs,
            checkpoint=self.home(case, after=True),
            parallelism=case.after.parallelism,
            trigger="available_now",
            **{"epoch": "1 s", **options, **more},
        )

    def _first_start(self, case: Case) -> dict[str, Any]:
        if case.how == "fork":
            return {"restore": self.home(case), "fork": True}
        if case.how == "savepoint":
            return {"restore": self.folder / f"savepoint-{case.number}"}
        return {"restore": self._last(case)} if "reset" in case.options() else {}

    def _last(self, case: Case) -> int:
        newest = Checkpoints(open_store(str(self.home(case)))).newest()
        assert newest is not None
        return int(newest.checkpoint)

    def _took_over(self, case: Case) -> bool:
        """Whether the changed program has begun, as far as the folder tells."""
        if case.how != "restart":
            return True
        newest = Checkpoints(open_store(str(self.home(case)))).newest()
        known = self.at_change.get(case.number)
        return known is not None and newest is not None and newest.generation > known.generation

    def kill_in_first_epoch(self) -> None:
        """Starts all changed programs in another process, and kills it."""
        numbers = ",".join(str(case.number) for case in self.cases)
        names = "/".join("+".join(case.kinds) for case in self.cases)
        command = [sys.executable, "-m", "tests.spark.changes", "--killed", str(self.folder), "--numbers", numbers]
        process = subprocess.Popen(
            [*command, "--names", names],
            env={**os.environ, HANGS: "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        lines = []
        try:
            for line in process.stdout:
                lines.append(line)
                if line.strip() == STARTED:
                    break
            else:
                raise AssertionError("".join(lines[-40:]))
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()

    def finish(self, spark: SparkSession) -> dict[str, list[str]]:
        """Runs all changed programs to their end; returns what is wrong, by case."""
        return dict(
            zip((case.name for case in self.cases), self._each(lambda case: self._end(spark, case)), strict=True)
        )

    def _end(self, spark: SparkSession, case: Case) -> list[str]:
        known = self.at_change[case.number]
        newest = Checkpoints(open_store(str(self.home(case, after=True)))).newest()
        if newest is None or (newest.generation, newest.checkpoint) != (known.generation + 1, known.checkpoint + 1):
            return [f"it was not killed in its first epoch: {newest and newest.checkpoint} after {known.checkpoint}"]
        query = self.start_changed(spark, case)
        if not query.await_termination(300):
            return ["it does not end"]
        batch = known.source.batch_id
        found = wrong(
            case,
            lambda table: self.tables[case.number].get(table, []),
            lambda table: self.read(case, table, after=True),
            0 if batch is None else batch + 1,
        )
        listeners = {name for sink in query.manifest().sinks.values() for name in sink.listeners}
        return [*found, *([] if ("told" in listeners) == case.after.listener else [f"listeners: {listeners}"])]

    def _each(self, step: Callable[[Case], T]) -> list[T]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(step, self.cases))


def _hang() -> None:
    """In a worker, until the process that started it is gone."""
    parent, until = os.getppid(), time.monotonic() + 600
    while os.getppid() == parent and time.monotonic() < until:
        time.sleep(0.2)
    os._exit(1)


def run(folder: Path, chosen: list[Case], spark: SparkSession) -> dict[str, list[str]]:
    """What is wrong, by case."""
    changes = Changes(folder, chosen)
    changes.make_backlogs(spark)
    changes.kill_in_first_epoch()
    return changes.finish(spark)


def start_and_wait(folder: Path, chosen: list[Case]) -> None:
    """The process that is killed: every changed program is in its first epoch, which does not end."""
    spark = _session(folder)
    changes = Changes(folder, chosen)
    changes._each(lambda case: changes.start_changed(spark, case))
    print(STARTED, flush=True)
    time.sleep(600)


def _session(folder: Path) -> SparkSession:
    return pen.session(
        "local[2,4]",
        "penstock-changes",
        spark_driver_bindAddress="127.0.0.1",
        spark_sql_shuffle_partitions="2",
        spark_sql_warehouse_dir=str(folder / "warehouse"),
        spark_ui_enabled="false",
    )


@click.command()
@click.option("--count", default=60, show_default=True, help="Changes, alone and in pairs.")
@click.option("--seed", default=1, show_default=True, help="Chooses the pairs.")
@click.option("--only", help="One case, as it is printed.")
@click.option("--part", default="1/1", show_default=True, help="A part of them, as 2/4.")
@click.option("--batch", default=20, show_default=True, help="Changes that are killed at the same time.")
@click.option("--killed", type=Path, hidden=True)
@click.option("--numbers", hidden=True, default="")
@click.option("--names", hidden=True, default="")
def main(
    count: int, seed: int, only: str | None, part: str, batch: int, killed: Path | None, numbers: str, names: str
) -> None:
    """Runs changes of programs; ends with 1 if a table is not as it must be."""
    if killed is not None:
        pairs = zip(numbers.split(","), names.split("/"), strict=True)
        start_and_wait(killed, [Case(int(number), tuple(kinds.split("+"))) for number, kinds in pairs])
        return
    which, _, parts = part.partition("/")
    chosen = [case for case in cases(count, seed) if only in {None, case.name}][int(which) - 1 :: int(parts)]
    began, failed = time.monotonic(), 0
    for first in range(0, len(chosen), batch):
        with TemporaryDirectory(prefix="penstock-changes-") as folder:
            for name, problems in run(Path(folder), chosen[first : first + batch], _session(Path(folder))).items():
                failed += bool(problems)
                print(f"{'WRONG' if problems else 'ok':<6} {name}  {'; '.join(problems)}", flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} changes are right, seed {seed}, {time.monotonic() - began:.0f} s")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
