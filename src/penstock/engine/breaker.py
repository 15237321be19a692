"""Stops a query whose operators fail on too many records, before all of them become dead letters."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import TooManyErrors
from penstock.protocol.report import FAILED, TRIED, SubtaskReport

ROWS_MIN = 1_000
"""With fewer rows a rate says nothing; they are added to those of the next epochs."""


class Breaker:
    """Judges each operator's share of failing records, over at least `ROWS_MIN` of them."""

    def __init__(self, rate_max: float) -> None:
        self._rate_max = rate_max
        self._counted: dict[str, tuple[int, int]] = {}
        self._next = self._counted

    def judge(self, reports: Sequence[SubtaskReport]) -> None:
        """Called with all reports of an epoch before it is published. Raises: `TooManyErrors`."""
        totals: dict[str, int] = {}
        for report in reports:
            for counter, count in report.counters.items():
                totals[counter] = totals.get(counter, 0) + count
        self._next = dict(self._counted)
        for operator in (name.removesuffix(f".{TRIED}") for name in totals if name.endswith(f".{TRIED}")):
            before = self._counted.get(operator, (0, 0))
            tried = before[0] + totals[f"{operator}.{TRIED}"]
            failed = before[1] + totals.get(f"{operator}.{FAILED}", 0)
            if tried >= ROWS_MIN and failed > self._rate_max * tried:
                raise self._too_many(operator, tried, failed, reports)
            self._next[operator] = (tried, failed) if tried < ROWS_MIN else (0, 0)

    def published(self) -> None:
        """The epoch that was judged last counts; one that failed will be run, and judged, again."""
        self._counted = self._next

    def _too_many(self, operator: str, tried: int, failed: int, reports: Sequence[SubtaskReport]) -> TooManyErrors:
        samples = (report.samples[operator] for report in reports if operator in report.samples)
        return TooManyErrors(
            f"{operator}: {failed:,} of {tried:,} records failed, more than max_error_rate={self._rate_max:g} allows; "
            f"nothing of this epoch was published\n  one of them:  {next(samples, 'in an earlier epoch')}",
            cause="the function, or what it depends on, is broken, rather than single records",
            next_step="correct it and start again: nothing is lost; or raise max_error_rate (1 switches this off)",
            operator=operator,
            failed=failed,
            tried=tried,
        )
