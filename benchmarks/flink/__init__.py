"""Running count and sum per key against Apache Flink, in turn, on the same files.

Flink runs as a DataStream job of two subtasks in one JVM, with checkpoints every second, object reuse, and its heap or
its RocksDB store with incremental checkpoints. Penstock runs with epochs of a second on two slots of local Spark. Both
sides are warm, and neither counts its start. Maven fetches Flink's jars when the benchmark runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

from benchmarks import data, ours
from benchmarks.processes import cpu_s
from benchmarks.verdict import Verdicts

HERE = Path(__file__).parent
ROWS_PER_FILE = 500_000
FILES = 12
ROUNDS = 3
OPENED = ("java.base/java.util", "java.base/java.lang", "java.base/java.time")
"""What Flink's serializers look into."""
MARKS = {"hashmap": 1.3, "rocksdb": 4.0}


@dataclass(frozen=True, slots=True)
class Figures:
    """One run: rows and what they took."""

    rows_per_s: float
    cpu_us_per_row: float
    checkpoints: int


def run(spark: SparkSession, verdicts: Verdicts) -> None:
    if shutil.which("mvn") is None:
        verdicts.missing("no mvn on the PATH: Maven brings Flink's jars")
        return
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, _flink(Path(folder)) as flink:
        for keys in (100_000, 2_000_000):
            source = data.generate(Path(folder) / str(keys), files=FILES, rows_per_file=ROWS_PER_FILE, keys=keys)
            rounds = [_round(spark, flink, source) for _ in range(ROUNDS + 1)][1:]
            for name in rounds[0]:
                verdicts.note(f"{keys:,} keys: {_text(name, [one[name] for one in rounds])}")
            for store, mark in MARKS.items():
                ratio = median(one["Penstock"].rows_per_s / one[store].rows_per_s for one in rounds)
                cpu = median(one[store].cpu_us_per_row / one["Penstock"].cpu_us_per_row for one in rounds)
                verdicts.note(f"{keys:,} keys: a row takes {cpu:.2f} times the CPU in Flink's {store} store")
                verdicts.at_least(f"{keys:,} keys, to Flink's {store} store", ratio, mark, "×")


def _round(spark: SparkSession, flink: subprocess.Popen[str], source: Path) -> dict[str, Figures]:
    """The first round is for warming up."""
    return {**{store: _theirs(flink, store, source) for store in MARKS}, "Penstock": _mine(spark, source)}


def _mine(spark: SparkSession, source: Path) -> Figures:
    before_s = cpu_s(os.getpid())
    measured, epochs = ours.run(spark, source, ours.aggregate, name="totals", parallelism=2, epoch="1 s")
    used_s = cpu_s(os.getpid()) - before_s
    return Figures(measured.rows_per_s, used_s * 1e6 / data.count_rows(source), len(epochs))


def _theirs(flink: subprocess.Popen[str], store: str, source: Path) -> Figures:
    assert flink.stdin is not None
    assert flink.stdout is not None
    flink.stdin.write(f"{store} {source}\n")
    flink.stdin.flush()
    for line in flink.stdout:
        if line.startswith("run "):
            rows, wall_s, used_s, checkpoints = line.split()[1:]
            assert int(rows) == data.count_rows(source), f"Flink saw {rows} rows of {data.count_rows(source)}"
            return Figures(int(rows) / float(wall_s), float(used_s) * 1e6 / int(rows), int(checkpoints))
    raise AssertionError("Flink ended without an answer; its reason is above")


@contextmanager
def _flink(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A JVM that answers each line with a run."""
    classes, jars = folder / "classes", folder / "jars"
    subprocess.run(
        ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:build-classpath", f"-Dmdep.outputFile={jars}"],
        check=True,
    )
    java = HERE / "src" / "main" / "java" / "Totals.java"
    subprocess.run(["javac", "-nowarn", "-cp", jars.read_text(), "-d", str(classes), str(java)], check=True)
    opened = [f"--add-opens={module}=ALL-UNNAMED" for module in OPENED]
    command = ["java", *opened, "-Xmx6g", "-cp", f"{classes}:{jars.read_text()}", "Totals"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _text(name: str, runs: list[Figures]) -> str:
    who = name if name == "Penstock" else f"Flink 2.3, {name} store"
    rates = ", ".join(f"{one.rows_per_s / 1e3:,.0f}k" for one in runs)
    cpu = ", ".join(f"{one.cpu_us_per_row:.2f}" for one in runs)
    return f"{who}: {rates} rows/s; CPU per row {cpu} µs; checkpoints {', '.join(str(one.checkpoints) for one in runs)}"
