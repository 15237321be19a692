"""What a rehearsal tells: what the program did, beside what the original has done."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from penstock.engine.differences import Differences
from penstock.observe.events import EpochFailed, EpochPublished, Event
from penstock.observe.progress import human_bytes, human_seconds
from penstock.protocol.ids import CheckpointId
from penstock.protocol.report import ErrorReport

HISTORY_MAX = 1_000
"""Epochs of the original that count: the newest ones."""


@dataclass(frozen=True, slots=True)
class EpochFigures:
    """Epochs of one run, or of a history."""

    epochs: int = 0
    rows_in: int = 0
    rows_processed: int = 0
    median_s: float = 0.0
    p99_s: float = 0.0
    longest_s: float = 0.0
    rows_per_s: float = 0.0
    """Processed in the time that epochs took."""
    failed: int = 0
    """Attempts at an epoch that published nothing."""

    @staticmethod
    def of(events: Iterable[Event]) -> EpochFigures:
        seen = list(events)
        epochs = [event for event in seen if isinstance(event, EpochPublished) and event.kind != "takeover"]
        epochs = epochs[-HISTORY_MAX:]
        failed = sum(isinstance(event, EpochFailed) for event in seen)
        if not epochs:
            return EpochFigures(failed=failed)
        took = sorted(epoch.duration_s for epoch in epochs)
        processed = sum(epoch.rows_processed for epoch in epochs)
        return EpochFigures(
            epochs=len(epochs),
            rows_in=sum(epoch.rows_in for epoch in epochs),
            rows_processed=processed,
            median_s=_share(took, 0.5),
            p99_s=_share(took, 0.99),
            longest_s=took[-1],
            rows_per_s=processed / sum(took) if sum(took) else 0.0,
            failed=failed,
        )


def _share(ascending: Sequence[float], share: float) -> float:
    """The smallest value that is at least as large as that share of all values."""
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)]


@dataclass(frozen=True, slots=True)
class Size:
    """Rows and bytes at one moment."""

    rows: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.rows:,} rows, {human_bytes(self.bytes)}"


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The report of a rehearsal. Printed, it is text for people."""

    folder: str
    checkpoint: CheckpointId
    """The checkpoint of the original that was forked."""
    ended: str
    """Why the rehearsal ended."""
    figures: EpochFigures
    original: EpochFigures
    """From the history of the original."""
    in_flight: tuple[Size, Size]
    """Before and after."""
    state: tuple[Size, Size]
    """Before and after, as files have it: a key that changed may count more than once."""
    rows_out: dict[str, int] = field(default_factory=dict)
    """By sink."""
    dead_letters: int = 0
    counters: dict[str, int] = field(default_factory=dict)
    """What operators counted in the rehearsal, as ``operator.name``."""
    against: EpochFigures | None = None
    """The old program on the same rows, if one was given."""
    differences: tuple[Differences, ...] = ()
    not_compared: str | None = None
    """Why results were not compared although keys were given."""
    error: ErrorReport | None = None
    """What ended the program, if something did."""

    @property
    def ok(self) -> bool:
        """Whether the program ran without an error."""
        return self.error is None

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterable[str]:
        now, before = self.figures, self.original
        yield f"rehearsal of checkpoint {self.checkpoint} in {self.folder}: {self.ended}"
        if self.error is not None:
            yield f"    error {self.error.code}: {self.error.seen}"
            yield f"    likely cause: {self.error.cause}"
        old = "" if self.against is None else f"  {'old program':>12}"
        yield f"    {'':<18}{'rehearsal':>12}{old}  {'the original':>12}"
        for what, show in _ROWS:
            value = "" if self.against is None else f"  {show(self.against):>12}"
            yield f"    {what:<18}{show(now):>12}{value}  {show(before) if before.epochs else '–':>12}"
        yield f"    rows in flight    {self.in_flight[0]} before, {self.in_flight[1]} after"
        yield f"    state             {self.state[0]} before, {self.state[1]} after"
        for sink, rows in self.rows_out.items():
            yield f"    sink {sink}: {rows:,} rows, written to no table"
        yield f"    dead letters: {self.dead_letters:,}"
        for name, count in self.counters.items():
            yield f"    {name}: {count:,}"
        if self.not_compared is not None:
            yield f"    results were not compared: {self.not_compared}"
        for found in self.differences:
            yield from _told(found)

    def to_json(self) -> str:
        """One document, for programs."""
        document = {**dataclasses.asdict(self), "error": None, "ok": self.ok}
        if self.error is not None:
            document["error"] = msgspec.to_builtins(self.error)
        for shown, found in zip(document["differences"], self.differences, strict=True):
            shown["any"] = found.any
        return json.dumps(document, indent=2, default=str)


_ROWS: tuple[tuple[str, Callable[[EpochFigures], str]], ...] = (
    ("epochs", lambda figures: f"{figures.epochs:,}"),
    ("epoch, median", lambda figures: human_seconds(figures.median_s)),
    ("epoch, p99", lambda figures: human_seconds(figures.p99_s)),
    ("rows read", lambda figures: f"{figures.rows_in:,}"),
    ("rows processed", lambda figures: f"{figures.rows_processed:,}"),
    ("rows per second", lambda figures: f"{figures.rows_per_s:,.0f}"),
    ("failed attempts", lambda figures: f"{figures.failed:,}"),
)


def _told(found: Differences) -> Iterable[str]:
    yield (
        f"    sink {found.sink} by {', '.join(found.key)}: {found.same:,} keys the same, {found.changed:,} changed, "
        f"{found.only_new:,} only in the new program, {found.only_old:,} only in the old one"
    )
    for column, count in found.columns.items():
        yield f"        {column} differs in {count:,} keys"
    if found.columns_added:
        yield f"        more columns: {', '.join(found.columns_added)}"
    if found.columns_removed:
        yield f"        fewer columns: {', '.join(found.columns_removed)}"
    for example in found.examples:
        yield f"        old {example['old']}"
        yield f"        new {example['new']}"
