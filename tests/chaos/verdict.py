"""What a run must not find."""

from __future__ import annotations

import re

from tests.chaos.messages import Ended, Refused

_NOT_FOR_USERS = ("\tat ", "Traceback", "Py4J", "java.base/")


class Wrong(AssertionError):
    """A promise is broken."""


def require_understandable(outcome: Ended | Refused) -> None:
    """Raises: `Wrong` for a message that says less than a user needs, or more than one can read."""
    if isinstance(outcome, Ended) and not outcome.code:
        return
    message = outcome.message
    catalogued = re.match(r"\[PEN-\d{3}\] ", message) and outcome.code != "PEN-000"
    complete = "likely cause:" in message and "next step:" in message
    if not (catalogued and complete) or any(part in message for part in _NOT_FOR_USERS):
        raise Wrong(f"a message that nobody understands: {message}")


def require_names(outcome: Ended | Refused, what: str) -> None:
    """Raises: `Wrong` for a message that does not say what it is about."""
    if what not in outcome.message:
        raise Wrong(f"{what} is not in the message: {outcome.message}")
