"""Makes docs/reference/errors.md of the catalogue in `penstock.errors`.

``python scripts/errors_page.py > docs/reference/errors.md``
"""

from __future__ import annotations

import inspect
import sys

from penstock.errors import PenstockError, catalogue

_GROUPS = {
    "0": "Starting",
    "1": "Reading a checkpoint",
    "2": "Running",
    "3": "Subtasks and storage",
    "4": "Tables",
}

_TABLE_HEAD = ("| code | class | title | when |", "|---|---|---|---|")

_INTRODUCTION = """\
# Errors

Generated from `src/penstock/errors.py` by `python scripts/errors_page.py`. Do not edit.

Every error that Penstock raises is a `penstock.PenstockError`; its kinds are classes in `penstock.errors`. The message
has a code, what was seen, the likely cause and the next step. The same parts are attributes: `code`, `title`, `seen`,
`cause`, `next_step`, and `fields`, a dict of text with what belongs to the case, such as `path`, `operator`, `stage` or
`subtask`. The error that ended a query is raised by `query.await_termination()` and `query.stop()`, returned by
`query.exception()`, and stored in `events.jsonl`.

A traceback shows your own lines and the message. With the environment variable `PENSTOCK_DEBUG=1` it also shows the
frames of Penstock, and what Spark or Java said.

An epoch that fails publishes nothing. What was published before stays as it was, and a restart goes on from there.
"""


def errors_page() -> str:
    """The page, one table per group of codes."""
    parts = [_INTRODUCTION]
    kinds = [kind for kind in catalogue().values() if kind is not PenstockError]
    for digit, heading in _GROUPS.items():
        rows = [_row(kind) for kind in kinds if kind.code.removeprefix("PEN-0")[0] == digit]
        parts.append("\n".join([f"## {heading}", "", *_TABLE_HEAD, *rows, ""]))
    parts.append(f"`{PenstockError.code}` ({PenstockError.title}) stands for a fault in Penstock itself: report it.\n")
    return "\n".join(parts)


def _row(kind: type[PenstockError]) -> str:
    when = " ".join((inspect.getdoc(kind) or "").split())
    return f"| `{kind.code}` | `{kind.__name__}` | {kind.title} | {when} |"


if __name__ == "__main__":
    sys.stdout.write(errors_page())
