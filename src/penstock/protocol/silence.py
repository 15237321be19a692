"""A source that does not answer, which is something else than a source that has nothing new."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceState:
    """What a source has to answer right now, in the words of the one who asks it; None: nothing.

    `sign` is another one for each question. Two questions in the same words are two questions. `to_source`: the source
    itself is asked, and not the one who plans what to do with its answer.
    """

    question: str | None
    sign: int = 0
    to_source: bool = True


@dataclass(frozen=True, slots=True)
class Silence:
    """A question that has had no answer since `since_s`, when it was first seen."""

    state: SourceState
    since_s: float


def listened(silence: Silence | None, state: SourceState | None, now_s: float) -> Silence | None:
    """What is known after one more look; a state of None says that the look was not possible.

    >>> first = listened(None, SourceState("which rows?", 1), 10.0)
    >>> listened(first, SourceState("which rows?", 1), 20.0) == first
    True
    >>> listened(first, SourceState("which rows?", 2), 20.0).since_s
    20.0
    """
    if state is None or (silence is not None and silence.state == state):
        return silence
    return None if state.question is None else Silence(state, now_s)


def too_long(silence: Silence, now_s: float, limit_s: float) -> bool:
    return now_s - silence.since_s >= limit_s
