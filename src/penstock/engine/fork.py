"""Before a fork begins: none of its sinks may write to a table of the original. Changes nothing."""

from __future__ import annotations

from contextlib import closing

from penstock.engine.commituser import commit_user
from penstock.engine.origin import Origin
from penstock.errors import ForkRefused
from penstock.graph.pipeline import Pipeline
from penstock.protocol.fork import SameTable, fork_tables


def require_other_tables(origin: Origin, pipeline: Pipeline) -> None:
    """Raises: `ForkRefused` before any table is made; `StorageFailed`."""
    bindings = {binding.name: binding for binding in pipeline.sinks()}
    marks = {name: binding.sink.mark() for name, binding in bindings.items()}
    for (name, other), verdict in fork_tables(origin.manifest, marks).items():
        binding = bindings[name]
        if verdict is SameTable.ASK:
            with closing(binding.sink.open_committer(commit_user(origin.manifest.identity, other))) as committer:
                if not committer.commits(None, 1).commits:
                    continue
        raise ForkRefused(
            f"sink {name} of the fork points to {binding.sink.description}, where sink {other} of the original writes",
            cause="the program is the original's, with the same tables",
            next_step="give each sink of the fork a table of its own, or pen.Discard()",
            sink=name,
        )
