"""The commit log: which table snapshot holds which checkpoints, from the history of a query.

A commit that was found in the table after a crash may be in the history twice; it counts once. The table itself says
the same: its snapshots carry the checkpoint as commit identifier and as property ``penstock.checkpoint``.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.observe.events import Committed, Event


def commit_log(events: Iterable[Event]) -> list[Committed]:
    """Every commit once, in the order of the history; what was measured is preferred to what was found."""
    commits: dict[tuple[str, int, int | None], Committed] = {}
    for event in events:
        if isinstance(event, Committed):
            key = (event.sink, event.last, event.snapshot)
            if key not in commits or (commits[key].found and not event.found):
                commits[key] = event
    return list(commits.values())
