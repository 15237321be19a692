"""Per-key Python against Python's other stream processors, in turn, on the same rows: Bytewax, Pathway, PyFlink.

Each runs as two processes, or two subtasks, with recovery every second, in an environment of its own, which the
benchmark makes with pip. Rates count from the first row to the end of the last process; CPU time is that of all
processes of a side.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pyarrow.csv as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks import data, ours
from benchmarks.processes import cpu_s
from benchmarks.session import ROOT
from benchmarks.verdict import Verdicts

HERE = Path(__file__).parent
ENVIRONMENTS = ROOT / "artifacts" / "pythons"
PACKAGES = {
    "bytewax": ("bytewax==0.21.1", "pyarrow==19.0.1"),
    "pathway": ("pathway==0.33.0",),
    "pyflink": ("apache-flink==2.3.0",),
}
KEYS = 100_000
FILES, ROWS_PER_FILE = 4, 250_000
ROUNDS = 2
MARK = 5.0


@dataclass(frozen=True, slots=True)
class Figures:
    rows_per_s: float
    cpu_us_per_row: float


def run(spark: SparkSession, verdicts: Verdicts) -> None:
    peers = {name: runner for name, runner in RUNNERS.items() if _installed(name, verdicts)}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        source = data.generate(Path(folder) / "in", files=FILES, rows_per_file=ROWS_PER_FILE, keys=KEYS)
        rounds = [
            {
                "Penstock": _mine(spark, source),
                **{name: _theirs(runner, name, source) for name, runner in peers.items()},
            }
            for _ in range(ROUNDS)
        ]
    best = 0.0
    for name in rounds[0]:
        runs = [one[name] for one in rounds]
        rates = ", ".join(f"{one.rows_per_s / 1e3:,.1f}k" for one in runs)
        verdicts.note(
            f"{name}: {rates} rows/s; CPU per row {', '.join(f'{one.cpu_us_per_row:.1f}' for one in runs)} µs"
        )
        if name != "Penstock":
            ratio = median(one["Penstock"].rows_per_s / one[name].rows_per_s for one in rounds)
            verdicts.note(f"to {name}: {ratio:.1f}×")
            best = ratio if best == 0.0 else min(best, ratio)
    verdicts.at_least("to the best of them", best, MARK, "×")


def _mine(spark: SparkSession, source: Path) -> Figures:
    before_s = cpu_s(os.getpid())
    measured, _ = ours.run(spark, source, ours.process, name="process", parallelism=2, epoch="1 s", warmup=1)
    return Figures(measured.rows_per_s, (cpu_s(os.getpid()) - before_s) * 1e6 / data.count_rows(source))


def _theirs(runner: Callable[[Path, Path], Mapping[str, float]], name: str, source: Path) -> Figures:
    rows = data.count_rows(source)
    with tempfile.TemporaryDirectory(prefix=f"penstock-bench-{name}-") as kept:
        figures = runner(source, Path(kept))
    return Figures(rows / figures["wall_s"], figures["cpu_s"] * 1e6 / rows)


def _bytewax(source: Path, kept: Path) -> Mapping[str, float]:
    python = ENVIRONMENTS / "bytewax" / "bin" / "python"
    subprocess.run([str(python), "-m", "bytewax.recovery", str(kept), "2"], check=True)
    flags = ["-p", "2", "-r", str(kept), "-s", "1", "-b", "0"]
    return _timed([str(python), "-m", "bytewax.testing", *flags, "bytewax_totals:flow"], source)


def _pathway(source: Path, kept: Path) -> Mapping[str, float]:
    texts = kept / "csv"
    texts.mkdir()
    for file in sorted(source.glob("*.parquet")):
        pc.write_csv(pq.read_table(file), texts / f"{file.stem}.csv")
    bin_folder = ENVIRONMENTS / "pathway" / "bin"
    command = [str(bin_folder / "pathway"), "spawn", "-n", "2", str(bin_folder / "python"), "pathway_totals.py"]
    return _timed(command, texts, TOTALS_KEPT=str(kept / "kept"))


def _pyflink(source: Path, kept: Path) -> Mapping[str, float]:
    python = ENVIRONMENTS / "pyflink" / "bin" / "python"
    return _timed([str(python), "pyflink_totals.py"], source, TOTALS_KEPT=str(kept))


RUNNERS: Mapping[str, Callable[[Path, Path], Mapping[str, float]]] = {
    "bytewax": _bytewax,
    "pathway": _pathway,
    "pyflink": _pyflink,
}


def _timed(command: list[str], source: Path, **environment: str) -> Mapping[str, float]:
    """Runs a program whose processes print `first` and `last` with the time of day and their CPU time."""
    used_s, started_s = 0.0, time.time()
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(
            command,
            cwd=HERE,
            env={**os.environ, "TOTALS_FOLDER": str(source), **environment},
            stdout=output,
            stderr=subprocess.DEVNULL,
        ) as process,
    ):
        while process.poll() is None:
            used_s = max(used_s, cpu_s(process.pid))
            time.sleep(0.1)
        output.seek(0)
        words = [line.split() for line in output if line.startswith(("first ", "last "))]
    assert process.returncode == 0, f"{command} ended with {process.returncode}"
    first_s = min((float(at) for what, at, *_ in words if what == "first"), default=started_s)
    return {"wall_s": max(float(at) for what, at, *_ in words if what == "last") - first_s, "cpu_s": used_s}


def _installed(name: str, verdicts: Verdicts) -> bool:
    """Makes the environment of a peer, once."""
    folder = ENVIRONMENTS / name
    if (folder / "ready").exists():
        return True
    shutil.rmtree(folder, ignore_errors=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", *PACKAGES[name]], check=True)
    except subprocess.CalledProcessError as error:
        verdicts.missing(f"{name} cannot be installed here: {error}")
        return False
    (folder / "ready").touch()
    return True
