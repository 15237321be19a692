"""Reports a source that does not answer. The query goes on with in-flight data, because a source may come back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from penstock.engine.feed import Feed
from penstock.engine.history import utc_now
from penstock.observe.events import SourceSlow
from penstock.protocol.silence import Silence, listened, too_long

ANSWER_S = 5.0
"""A source that takes longer is what the query waits for, and not "no input"."""

_log = logging.getLogger("penstock")


class SourceWatch:
    """One per query; `look` looks once."""

    def __init__(
        self,
        feed: Feed,
        sources: Sequence[str],
        *,
        limit_s: float | None,
        clock: Callable[[], float],
        ending: Callable[[], bool],
        record: Callable[[SourceSlow], None],
    ) -> None:
        self._feed, self._sources = feed, sources
        self.limit_s, self._clock = limit_s, clock
        self._ending, self._record = ending, record
        self._silence: Silence | None = None
        self._told: Silence | None = None

    def look(self) -> None:
        if self.limit_s is None:
            return
        state, now_s = self._feed.state(), self._clock()
        if self._ending():
            return  # a source that is being stopped has nothing to answer, and that is no answer
        self._silence = silence = listened(self._silence, state, now_s)
        if self._told is not None and self._told is not silence:
            self._answers(self._told, now_s)
        elif silence is not None and self._told is None and too_long(silence, now_s, self.limit_s):
            self._is_silent(silence, now_s)

    def silent(self) -> str | None:
        """The source that does not answer, and since when: said long before it is reported as an event."""
        silence, now_s = self._silence, self._clock()
        if silence is None or (silence is not self._told and not silence.state.to_source):
            return None
        return self._described(silence, now_s) if too_long(silence, now_s, ANSWER_S) else None

    def _is_silent(self, silence: Silence, now_s: float) -> None:
        self._told = silence
        _log.warning("%s; epochs go on with what is in flight", self._described(silence, now_s))
        self._record(self._event(silence, now_s, answered=False))

    def _answers(self, silence: Silence, now_s: float) -> None:
        self._told = None
        _log.warning("%s answers again, after %.0f s", self._who(), now_s - silence.since_s)
        self._record(self._event(silence, now_s, answered=True))

    def _event(self, silence: Silence, now_s: float, *, answered: bool) -> SourceSlow:
        return SourceSlow(
            at=utc_now(),
            source=", ".join(self._sources),
            what=silence.state.question or "",
            waited_s=now_s - silence.since_s,
            answered=answered,
        )

    def _described(self, silence: Silence, now_s: float) -> str:
        return f"{self._who()} has not answered for {now_s - silence.since_s:.0f} s: {silence.state.question}"

    def _who(self) -> str:
        if len(self._sources) == 1:
            return f"source {self._sources[0]}"
        return f"one of the sources {', '.join(self._sources)}"
