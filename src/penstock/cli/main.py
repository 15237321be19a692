"""Commands of ``penstock``. Each prints errors as they are written in `penstock.errors`, without a stack trace."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

import penstock as pen
from penstock.cli.doctor import doctor
from penstock.cli.page import report, ui
from penstock.cli.plan import plan
from penstock.cli.rehearse import rehearse
from penstock.cli.status import epochs, errors, status, top
from penstock.cli.terminal import say, say_json
from penstock.cli.upkeep import upkeep
from penstock.engine.checkpoints import Checkpoints
from penstock.engine.commitlog import read_commits
from penstock.errors import NoSuchCheckpoint, PenstockError
from penstock.observe.progress import format_commit, human_bytes, human_seconds
from penstock.protocol.manifest import Manifest
from penstock.sinks.paimon.installed import require_pypaimon
from penstock.store import open_store
from penstock.text import printable
from penstock.version import VERSION


class _Commands(click.Group):
    """Errors for people on the error stream, and for programs that asked for JSON as a document on the output."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["penstock.json"] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PenstockError as error:
            if ctx.meta["penstock.json"]:
                say_json(json.dumps({"error": msgspec.to_builtins(error.to_report())}, indent=2))
            else:
                say(str(error), err=True)
            sys.exit(1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION)
def main() -> None:
    """Exactly-once stateful streaming on PySpark."""


@main.command()
@click.option("--clicks", default=60_000, show_default=True, help="Clicks to generate.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where to keep data; default: a temporary folder.")
@click.option("--keep", is_flag=True, help="Keep the folder afterwards.")
def demo(clicks: int, folder: Path | None, keep: bool) -> None:
    """Run a job on local Spark, kill it with SIGKILL, restart it at another parallelism, count every row."""
    require_pypaimon("penstock demo")
    from penstock.cli.demo import run_demo

    sys.exit(run_demo(clicks=clicks, folder=folder, keep=keep))


@main.command()
@click.argument("folder")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def checkpoints(folder: str, as_json: bool) -> None:
    """List the checkpoints in FOLDER, what is in flight in them and what waits for its commit."""
    manifests = Checkpoints(open_store(folder)).retained()
    if not manifests:
        raise _no_checkpoint(folder)
    if as_json:
        say_json(json.dumps([_summary(manifest) for manifest in manifests], indent=2))
        return
    for manifest in manifests:
        say(printable(_line(manifest)))


@main.command()
@click.argument("folder")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def commits(folder: str, as_json: bool) -> None:
    """List the commits of the query in FOLDER: which table snapshot holds which checkpoints."""
    store = open_store(folder)
    if not Checkpoints(store).ids():
        raise _no_checkpoint(folder)
    log = read_commits(store)
    if as_json:
        say_json(msgspec.json.format(msgspec.json.encode(log)).decode())
        return
    for commit in log:
        say(printable(f"{commit.at}  {format_commit(commit)}"))


def _no_checkpoint(folder: str) -> NoSuchCheckpoint:
    return NoSuchCheckpoint(
        f"{folder} holds no checkpoint",
        cause="the folder is not a Penstock checkpoint, or its query never started",
        next_step="name the folder that was given as checkpoint=",
    )


@main.command()
@click.argument("folder")
@click.argument("path")
@click.option("--checkpoint", type=int, help="A checkpoint of FOLDER; default: the newest.")
@click.option("--max-parallelism", type=int, help="Another number of key groups: rewrites everything, on Spark.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def savepoint(folder: str, path: str, checkpoint: int | None, max_parallelism: int | None, as_json: bool) -> None:
    """Copy a checkpoint of a stopped query in FOLDER to PATH, with everything it needs. For a running query use
    query.savepoint(PATH)."""
    made = pen.savepoint(folder, path, checkpoint=checkpoint, max_parallelism=max_parallelism)
    if as_json:
        say_json(json.dumps(dataclasses.asdict(made), indent=2))
        return
    say(
        f"savepoint {made.path}: checkpoint {made.checkpoint}, {made.rows_in_flight:,} rows in flight, "
        f"{made.files} files, {human_bytes(made.bytes)}, {human_seconds(made.duration_s)}"
    )


for _command in (doctor, plan, rehearse, upkeep, ui, report, status, top, epochs, errors):
    main.add_command(_command)


def _summary(manifest: Manifest) -> dict[str, Any]:
    return {
        "checkpoint": manifest.checkpoint,
        "parent": manifest.parent,
        "generation": manifest.generation,
        "created_at": manifest.created_at,
        "batch_id": manifest.source.batch_id,
        "parallelism": manifest.parallelism,
        "rows_in_flight": manifest.rows_in_flight,
        "bytes_in_flight": manifest.bytes_in_flight,
        "state_files": {operator: len(files) for operator, files in manifest.state.items()},
        "committed": {name: sink.committed for name, sink in manifest.sinks.items()},
        "uncommitted": {name: [p.checkpoint for p in sink.pending] for name, sink in manifest.sinks.items()},
    }


def _line(manifest: Manifest) -> str:
    pending = sum(len(sink.pending) for sink in manifest.sinks.values())
    return (
        f"checkpoint {manifest.checkpoint:>6}  generation {manifest.generation:>3}  {manifest.created_at}  "
        f"batch {manifest.source.batch_id if manifest.source.batch_id is not None else '–':>5}  in flight "
        f"{manifest.rows_in_flight:>11,} rows {human_bytes(manifest.bytes_in_flight):>8}  uncommitted {pending}"
    )
