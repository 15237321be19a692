"""Events as lines for a terminal: one aligned line per epoch, one per commit."""

from __future__ import annotations

from penstock.observe.events import Committed, EpochPublished


def format_epoch(event: EpochPublished) -> str:
    """One line; columns stay aligned from epoch to epoch. What autoscaling has to say comes last."""
    in_flight = f"{event.rows_in_flight:>11,} rows {human_bytes(event.bytes_in_flight):>8}"
    barrier = f"+{human_seconds(event.barrier_delay_s)}" if event.barrier_fired else "–"
    scaling = "".join(f"  {stage} {why}" for stage, why in event.scaling.items())
    if event.cadence is not None:
        got, asked = human_seconds(event.cadence.got_s), human_seconds(event.cadence.asked_s)
        scaling += f"  cadence: asked {asked}, got {got}, because {event.cadence.because}"
    late = sum(count for name, count in event.counters.items() if name.endswith(".late"))
    if late:
        scaling = f"  late {late:,}{scaling}"
    committed = "–" if event.committed is None else str(event.committed)
    return (
        f"epoch {event.checkpoint:>6} {event.kind:<8} in {event.rows_in:>11,}  processed {event.rows_processed:>11,}  "
        f"in flight {in_flight}  barrier {barrier:>7}  publish {human_seconds(event.publish_s):>6}  "
        f"committed {committed:>6}{scaling}"
    )


def format_commit(event: Committed) -> str:
    """One line: what became visible in the table."""
    checkpoints = str(event.last) if event.first == event.last else f"{event.first}–{event.last}"
    snapshot = "no snapshot" if event.snapshot is None else f"snapshot {event.snapshot}"
    return (
        f"commit {checkpoints} to {event.sink}: {snapshot}, {event.rows:,} rows in {event.files:,} "
        f"{'file' if event.files == 1 else 'files'}, "
        f"{'found in the table' if event.duration_s is None else human_seconds(event.duration_s)}"
    )


def human_bytes(count: int) -> str:
    """A size in at most eight characters, in the units in which options are written.

    >>> human_bytes(999), human_bytes(64_000_000)
    ('999 B', '64.0 MB')
    """
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("KB", "MB", "GB", "TB"):
        value /= 1000
        # 999.95 would be printed as 1000.0
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} PB"


def human_seconds(seconds: float) -> str:
    """A duration in at most seven characters, up to some years. One below zero is that of a clock that is ahead.

    >>> human_seconds(0.0123), human_seconds(2.5), human_seconds(600), human_seconds(-36000), human_seconds(2592000)
    ('12 ms', '2.5 s', '10 min', '-10.0 h', '30.0 d')
    """
    if seconds < 0:
        return f"-{human_seconds(-seconds)}"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"
