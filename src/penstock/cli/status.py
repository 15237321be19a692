"""``penstock status``, ``top``, ``epochs`` and ``errors``: what a folder tells about its query, in text and as JSON."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import click
import msgspec

from penstock.cli.terminal import say, say_json
from penstock.observe.condense import seconds_of
from penstock.observe.events import EpochPublished
from penstock.observe.folder import Folder
from penstock.observe.model import Failure, QueryView
from penstock.observe.progress import format_epoch, human_bytes, human_seconds
from penstock.observe.verdict import Health
from penstock.observe.views import phase_seconds
from penstock.store import open_store
from penstock.text import printable

CLEAR = "\x1b[H\x1b[2J"

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
        _draw([line for place in places for line in top_lines(place.look())], clear=count != 1)
        if look == count:
            return
        time.sleep(every)


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
            say(printable(f"{'':29}  {_phases(epoch)}"))


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
        for line in _failure_lines(failure):
            say(printable(line))
    for entry in view.unreadable:
        say(printable(f"unreadable  {entry.path}  [{entry.code}] {entry.why}"))
    if not shown and not view.unreadable:
        say("nothing went wrong, as far as the history goes back")


def _draw(lines: list[str], *, clear: bool) -> None:
    """Names come from folders of anybody; the only command that the terminal gets is ours."""
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


def checkpoint_age_s(view: QueryView) -> float | None:
    made = seconds_of(view.checkpoints[-1].created_at) if view.checkpoints else None
    now = seconds_of(view.looked_at)
    return None if made is None or now is None else max(0.0, now - made)


# -- as text -----------------------------------------------------------------------------------------------------------


def status_lines(view: QueryView) -> list[str]:
    verdict = view.verdict
    code = "" if verdict.code is None else f" [{verdict.code}]"
    since = "" if verdict.since is None else f" since {verdict.since}{_ago(verdict.since, view.looked_at)}"
    lines = [f"{view.name}: {verdict.kind.value}{code}{since}"]
    lines += _field("why", verdict.why)
    lines += _field("next step", verdict.next_step)
    lines += _field("folder", view.folder)
    if verdict.health is Health.EMPTY:
        return lines
    lines += _field("run", _run(view))
    lines += _field("checkpoint", _checkpoint(view))
    lines += _field("rates", _rates(view))
    lines += _field("in flight", _in_flight(view))
    lines += _field("watermark", ", ".join(_lags(view)))
    lines += _field("tables", ", ".join(_tables(view)))
    if view.late_rows:
        lines += _field("late rows", f"{view.late_rows:,}")
    if view.alive is not None:
        lines += _field(
            "sources",
            ", ".join(f"{one.source} {one.behind:,} behind" for one in view.alive.sources if one.behind is not None),
        )
    return lines


def top_lines(view: QueryView) -> list[str]:
    verdict = view.verdict
    lines = [f"{view.name}  {verdict.kind.value}  {_checkpoint(view)}  {_rates(view)}"]
    if not verdict.alive:
        lines += _field("why", verdict.why.splitlines()[0])
    lines.append(
        f"  {'stage':<24} {'subtasks':>8} {'rows/s':>12} {'cost/row':>9} {'skew':>5} {'barrier':>8} {'lag':>8}"
    )
    for stage in view.stages:
        last = stage.last
        lines.append(
            f"  {stage.name[:24]:<24} {stage.parallelism:>8} {_number(stage.rows_per_s):>12} "
            f"{_or_dash(None if last is None else last.row_cost_s, _tiny):>9} "
            f"{_or_dash(None if last is None else last.skew, '{:.1f}'.format):>5} "
            f"{_or_dash(None if last is None else last.barrier_delay_s, human_seconds):>8} "
            f"{_or_dash(stage.watermark_lag_s, human_seconds):>8}"
        )
    lines.append(f"  {'edge':<33} {'in flight':>12} {'bytes':>9} {'backlog':>8}")
    lines += [
        f"  {edge.name[:33]:<33} {edge.rows_in_flight:>12,} {human_bytes(edge.bytes_in_flight):>9} "
        f"{_or_dash(edge.backlog_s, human_seconds):>8}"
        for edge in view.edges
    ]
    return [*lines, ""]


def _field(name: str, text: str) -> list[str]:
    if not text:
        return []
    first, *rest = text.splitlines()
    return [f"  {name:<11}{first}", *(f"  {'':<11}{line}" for line in rest[:20])]


def _run(view: QueryView) -> str:
    if not view.runs:
        return ""
    run = view.runs[-1]
    where = f", process {run.pid} on {run.host}" if run.pid else ""
    restored = (
        "" if run.started is None or run.started.restored is None else f", from checkpoint {run.started.restored}"
    )
    started = "" if run.claimed_at is None else f", started {run.claimed_at}"
    return f"generation {run.generation}{where}{started}{restored}"


def _checkpoint(view: QueryView) -> str:
    if not view.checkpoint_ids:
        return "no checkpoint"
    age_s = checkpoint_age_s(view)
    age = "" if age_s is None else f", {human_seconds(age_s)} old"
    every = "" if view.rates.cadence_s is None else f", one every {human_seconds(view.rates.cadence_s)}"
    return f"checkpoint {view.checkpoint_ids[-1]}{age}{every}"


def _rates(view: QueryView) -> str:
    rates = view.rates
    if rates.rows_in_per_s is None:
        return ""
    busiest = max(rates.phases.items(), key=lambda phase: phase[1], default=None)
    mostly = "" if busiest is None else f", mostly {busiest[0]} ({busiest[1]:.0%})"
    return f"{_number(rates.rows_in_per_s)} rows/s in, {_number(rates.rows_processed_per_s)} processed{mostly}"


def _in_flight(view: QueryView) -> str:
    backlog_s = view.backlog_s
    takes = "" if not view.rows_in_flight else f", {_or_dash(backlog_s, human_seconds)} of work"
    return f"{view.rows_in_flight:,} rows, {human_bytes(view.bytes_in_flight)}{takes}"


def _lags(view: QueryView) -> Iterator[str]:
    for stage in view.stages:
        if stage.watermark_lag_s is not None:
            yield f"{stage.name} {human_seconds(stage.watermark_lag_s)} behind"


def _tables(view: QueryView) -> Iterator[str]:
    for sink in view.sinks:
        held = "nothing committed" if sink.committed is None else f"holds checkpoint {sink.committed}"
        waits = f", {len(sink.pending)} uncommitted" if sink.pending else ""
        yield f"{sink.name} {held}{waits}"


def _phases(epoch: EpochPublished) -> str:
    parts = [
        f"{phase} {human_seconds(seconds)}" for phase, seconds in phase_seconds(epoch).items() if seconds >= 0.0005
    ]
    return "  ".join(parts)


def _failure_lines(failure: Failure) -> list[str]:
    code = "" if failure.code is None else f" [{failure.code}]"
    attempt = "" if failure.attempt is None else f", attempt {failure.attempt}"
    end = ", which ended the run" if failure.fatal and failure.kind == "query" else ""
    lines = [f"{failure.at}  {failure.kind} {failure.where}{attempt}{code}{end}", *_field("seen", failure.seen)]
    return [*lines, *_field("cause", failure.cause), *_field("next step", failure.next_step)]


def _ago(since: str, looked_at: str) -> str:
    then, now = seconds_of(since), seconds_of(looked_at)
    return "" if then is None or now is None else f" ({human_seconds(max(0.0, now - then))} ago)"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _tiny(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else human_seconds(seconds)


def _or_dash(value: float | None, text: Callable[[float], str]) -> str:
    return "–" if value is None else text(value)
