"""``penstock demo``: a job on local Spark that is killed in the middle and must still write every row exactly once."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.cli.demo_job import TABLE
from penstock.sinks.paimon.read import listed_files, read_table
from penstock.spark.session import require_java

USERS = 500
HOT_SHARE = 0.7
FILES = 12
EPOCHS_BEFORE_THE_KILL = 6


def run_demo(*, clicks: int, folder: Path | None, keep: bool) -> int:
    """Returns the exit code: 0 only if the table holds every click exactly once."""
    require_java()
    with _folder(folder, keep=keep) as place:
        started = time.monotonic()
        generate(place / "input", clicks)
        click.echo(f"{clicks:,} clicks of {USERS} users, {HOT_SHARE:.0%} of them of one user, in {FILES} files")
        click.echo("\nfirst run, 4 subtasks, a slow operator, epochs of 1 s:")
        if not _run(place, parallelism=4, kill_after=EPOCHS_BEFORE_THE_KILL):
            click.echo("the job ended before it could be killed; use more --clicks")
            return 1
        click.echo("\nkilled: the driver and its JVM, by SIGKILL. Second run, 3 subtasks:")
        _run(place, parallelism=3, kill_after=None)
        click.echo(f"\n{time.monotonic() - started:.0f} s in all; the table read back:")
        return _show(audit(place, clicks))


@contextmanager
def _folder(folder: Path | None, *, keep: bool) -> Iterator[Path]:
    if folder is not None:
        if folder.exists() and any(folder.iterdir()):
            raise click.UsageError(f"{folder} is not empty; name a new folder")
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.absolute()
        return
    place = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        yield place
    finally:
        if keep:
            click.echo(f"kept in {place}; look at it with: penstock checkpoints {place}/checkpoint")
        else:
            shutil.rmtree(place, ignore_errors=True)


def generate(folder: Path, clicks: int) -> None:
    """Parquet files of clicks, one per micro-batch."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(42)
    users = np.where(rng.random(clicks) < HOT_SHARE, 0, rng.integers(1, USERS, clicks))
    table = pa.table({"click": pa.array(np.arange(clicks)), "user": pa.array(users)})
    for number, start in enumerate(range(0, clicks, -(-clicks // FILES))):
        path = folder / f"{number:04d}.parquet"
        pq.write_table(table.slice(start, -(-clicks // FILES)), path)
        os.utime(path, (number, number))  # Spark takes files in the order of their time


def start_job(folder: Path, parallelism: int) -> subprocess.Popen[str]:
    """The job in a process group of its own, so that all of it can be killed at once."""
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.demo_job", str(folder), str(parallelism)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _run(folder: Path, *, parallelism: int, kill_after: int | None) -> bool:
    """Runs the job; True if it was killed."""
    job = start_job(folder, parallelism)
    epochs = 0
    try:
        assert job.stdout is not None
        for line in job.stdout:
            click.echo(line, nl=False)
            epochs += line.startswith("epoch")
            if epochs == kill_after:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
                return True
        code = job.wait()
    finally:
        if job.poll() is None:  # Ctrl-C
            os.killpg(job.pid, signal.SIGKILL)
    if code != 0:
        assert job.stderr is not None
        click.echo(job.stderr.read(), err=True)
        raise click.ClickException(f"the job ended with exit code {code}")
    return False


@dataclass(frozen=True, slots=True)
class Audit:
    """What the table holds, against what it must hold."""

    expected: int
    rows: int
    missing: int
    duplicated: int
    files: int
    files_listed_twice: int
    exact_state: bool

    @property
    def ok(self) -> bool:
        wrong = self.missing + self.duplicated + self.files_listed_twice
        return self.exact_state and wrong == 0 and self.rows == self.expected

    def __str__(self) -> str:
        return (
            f"exactly once: expected {self.expected}, found {self.rows}, missing {self.missing}, "
            f"duplicated {self.duplicated}"
        )


def audit(folder: Path, expected: int) -> Audit:
    """Reads the table back and counts every click."""
    table = read_table(str(folder / "warehouse"), TABLE)
    files = listed_files(str(folder / "warehouse"), TABLE)
    counts = np.bincount(table["click"].to_numpy(), minlength=expected)
    return Audit(
        expected=expected,
        rows=table.num_rows,
        missing=int((counts == 0).sum()),
        duplicated=int((counts - 1).clip(min=0).sum()),
        files=len(files),
        files_listed_twice=len(files) - len(set(files)),
        exact_state=_numbered_without_gaps(table),
    )


def _show(found: Audit) -> int:
    click.echo(f"{found.rows:,} rows in {found.files} files, listed twice: {found.files_listed_twice}")
    click.echo(f"each user's clicks numbered 1, 2, 3 … without gap or repeat: {'yes' if found.exact_state else 'NO'}")
    click.echo(str(found))
    return 0 if found.ok else 1


def _numbered_without_gaps(table: pa.Table) -> bool:
    """State is exact if the job gave the numbers 1, 2, 3 … to each user's clicks, each once."""
    ordered = table.sort_by([("user", "ascending"), ("number", "ascending")])
    users, numbers = ordered["user"].to_numpy(), ordered["number"].to_numpy()
    starts = np.flatnonzero(np.r_[True, users[1:] != users[:-1]])
    lengths = np.diff(np.r_[starts, len(users)])
    return bool((numbers == np.arange(len(users)) - np.repeat(starts, lengths) + 1).all())
