"""``penstock status``, ``top``, ``epochs`` and ``errors``: what a folder tells about its query, in text and as JSON."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import time
from typing import Any

import click
import msgspec

from penstock.cli.terminal import say, say_json
from penstock.errors import PenstockError
from penstock.observe.folder import Folder
from penstock.observe.lines import CLEAR, checkpoint_age_s, failure_lines, phases_line, status_lines, top_lines
from penstock.observe.model import QueryView
from penstock.observe.progress import format_epoch
from penstock.store import open_store
from penstock.text import printable

_json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document.")
_every_option = click.option("--every", default=2.0, show_default=True, type=click.FloatRange(min=0.1), help="Seconds.")


@click.command()
@click.argument("folder")
@_json_option
@click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C or until the query has ended.")
@_every_option
def status(folder: str, as_json: bool, watch: bool, every: float) -> None:
    """Tell whether the query in FOLDER lives, since when, why, and what to do.

    Exit codes: 0 alive and well; 1 the folder cannot be read; 3 it ended as asked; 4 alive, but something fails or does
    not answer; 5 dead; 6 no query here.
    """
    place = Folder(open_store(folder))
    while True:
        view = place.look()
        if as_json:
            say_json(json.dumps(as_document(view), indent=None if watch else 2))
        else:
            _draw(status_lines(view), clear=watch)
        if not watch or not view.verdict.alive:
            sys.exit(view.verdict.health.value)
        time.sleep(every)


@click.command()
@click.argument("folders", nargs=-1, required=True)
@_every_option
@click.option("--count", type=click.IntRange(min=1), help="Stop after so many looks; default: never.")
def top(folders: tuple[str, ...], every: float, count: int | None) -> None:
    """Show the queries in FOLDERS, their stages and edges, again and again."""
    places = [Folder(open_store(folder)) for folder in folders]
    for look in itertools.count(1):
        shown = [_top(name, place) for name, place in zip(folders, places, strict=True)]
        _draw([line for lines, _ in shown for line in lines], clear=count != 1)
        if look == count:
            sys.exit(0 if all(readable for _, readable in shown) else 1)
        time.sleep(every)


def _top(name: str, place: Folder) -> tuple[list[str], bool]:
    """Lines, and whether the folder was read: one that cannot be does not hide the others, nor end the watch."""
    try:
        return top_lines(place.look()), True
    except PenstockError as error:
        return [f"{name}  cannot be read", *str(error).splitlines(), ""], False


@click.command()
@click.argument("folder")
@click.option("--last", default=20, show_default=True, type=click.IntRange(min=1), help="How many.")
@_json_option
def epochs(folder: str, last: int, as_json: bool) -> None:
    """List the last epochs in FOLDER and where their time went."""
    shown = Folder(open_store(folder)).look().epochs[-last:]
    if as_json:
        say_json(msgspec.json.format(msgspec.json.encode(shown)).decode())
        return
    for epoch in shown:
        say(printable(f"{epoch.at}  {format_epoch(epoch)}"))
        if epoch.stages:
            say(printable(f"{'':29}  {phases_line(epoch)}"))


@click.command()
@click.argument("folder")
@click.option("--last", default=20, show_default=True, type=click.IntRange(min=1), help="How many.")
@_json_option
def errors(folder: str, last: int, as_json: bool) -> None:
    """List what went wrong with the query in FOLDER, with the cause and the next step."""
    view = Folder(open_store(folder)).look()
    shown = view.failures[-last:]
    if as_json:
        unreadable = [dataclasses.asdict(entry) for entry in view.unreadable]
        say_json(json.dumps({"errors": [dataclasses.asdict(one) for one in shown], "unreadable": unreadable}, indent=2))
        return
    for failure in shown:
        for line in failure_lines(failure):
            say(printable(line))
    for entry in view.unreadable:
        say(printable(f"unreadable  {entry.path}  [{entry.code}] {entry.why}"))
    if not shown and not view.unreadable:
        say("nothing went wrong, as far as the history goes back")


def _draw(lines: list[str], *, clear: bool) -> None:
    """Names may come from a stranger's folder; the only command that the terminal gets is ours."""
    if clear and sys.stdout.isatty():
        click.echo(CLEAR, nl=False)
    for line in lines:
        say(printable(line))


# -- as JSON -----------------------------------------------------------------------------------------------------------


def as_document(view: QueryView) -> dict[str, Any]:
    """What `status` tells, as plain values with stable names."""
    verdict, rates = view.verdict, view.rates
    return {
        "name": view.name,
        "folder": view.folder,
        "looked_at": view.looked_at,
        "status": verdict.kind.value,
        "health": verdict.health.name.lower(),
        "exit_code": verdict.health.value,
        "alive": verdict.alive,
        "since": verdict.since,
        "why": verdict.why,
        "code": verdict.code,
        "next_step": verdict.next_step,
        "generation": verdict.generation,
        "checkpoint": view.checkpoint_ids[-1] if view.checkpoint_ids else None,
        "checkpoint_age_s": checkpoint_age_s(view),
        "cadence_s": rates.cadence_s,
        "rows_in_per_s": rates.rows_in_per_s,
        "rows_processed_per_s": rates.rows_processed_per_s,
        "rows_in_flight": view.rows_in_flight,
        "bytes_in_flight": view.bytes_in_flight,
        "backlog_s": view.backlog_s,
        "uncommitted": view.uncommitted,
        "unreadable": [dataclasses.asdict(entry) for entry in view.unreadable],
        "late_rows": view.late_rows,
        "state_bytes": view.checkpoints[-1].state_bytes if view.checkpoints else 0,
        "phases": dict(rates.phases),
        "stages": [
            {
                "name": stage.name,
                "parallelism": stage.parallelism,
                "rows_per_s": stage.rows_per_s,
                "watermark_lag_s": stage.watermark_lag_s,
                "skew": None if stage.last is None else stage.last.skew,
                "row_cost_s": None if stage.last is None else stage.last.row_cost_s,
            }
            for stage in view.stages
        ],
        "edges": [
            {
                "name": edge.name,
                "rows_in_flight": edge.rows_in_flight,
                "bytes_in_flight": edge.bytes_in_flight,
                "backlog_s": edge.backlog_s,
            }
            for edge in view.edges
        ],
        "sinks": [
            {
                "name": sink.name,
                "table": sink.table,
                "committed": sink.committed,
                "snapshot": sink.snapshot,
                "uncommitted": len(sink.pending),
            }
            for sink in view.sinks
        ],
        "sources": [] if view.alive is None else [msgspec.to_builtins(source) for source in view.alive.sources],
        "runs": [
            {
                "generation": run.generation,
                "host": run.host,
                "pid": run.pid,
                "started_at": run.claimed_at,
                "ended": None if run.stopped is None else run.stopped.reason,
                "ended_at": None if run.stopped is None else run.stopped.at,
            }
            for run in view.runs[-10:]
        ],
    }
