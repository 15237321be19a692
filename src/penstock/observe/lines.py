"""A query as lines of text, for a terminal: `penstock status`, `penstock top`, `query.watch()`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.observe.condense import seconds_of
from penstock.observe.events import EpochPublished
from penstock.observe.model import Failure, QueryView
from penstock.observe.progress import human_bytes, human_seconds
from penstock.observe.verdict import Health
from penstock.observe.views import phase_seconds

CLEAR = "\x1b[H\x1b[2J"


def checkpoint_age_s(view: QueryView) -> float | None:
    made = seconds_of(view.checkpoints[-1].created_at) if view.checkpoints else None
    now = seconds_of(view.looked_at)
    return None if made is None or now is None else max(0.0, now - made)


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
    lines += _field("unreadable", _unreadable(view))
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


def _unreadable(view: QueryView) -> str:
    """A start on a newest checkpoint that cannot be read would be refused."""
    if not view.unreadable:
        return ""
    last = max(view.unreadable, key=lambda entry: entry.path)
    more = f", and {len(view.unreadable) - 1} more" if len(view.unreadable) > 1 else ""
    return f"{last.path} [{last.code}] {last.why}{more}"


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


def phases_line(epoch: EpochPublished) -> str:
    parts = [
        f"{phase} {human_seconds(seconds)}" for phase, seconds in phase_seconds(epoch).items() if seconds >= 0.0005
    ]
    return "  ".join(parts)


def failure_lines(failure: Failure) -> list[str]:
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
