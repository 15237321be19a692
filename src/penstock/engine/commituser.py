"""The name under which a query commits to a table."""

from __future__ import annotations


def commit_user(identity: str, sink: str) -> str:
    """The commit user belongs to the checkpoint, not to the run: a restarted or copied query has the same.

    >>> commit_user("0f3c", "out")
    'penstock-0f3c-out'
    """
    return f"penstock-{identity}-{sink}"
