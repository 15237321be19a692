"""Faults that were found from outside, put back one by one: the generator notices each within 500 pipelines.

What else would notice them is blinded, so that it is the comparison with DuckDB that does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.graph import compiler, names
from penstock.graph import pipeline as graph
from penstock.inflight.delivery import CountedStream
from penstock.inflight.live import LiveInputs, LiveRows
from penstock.protocol import advance
from tests.generated.oracle import Oracle
from tests.generated.run import judge_seed

PIPELINES_MAX = 500

Patch = pytest.MonkeyPatch


def rows_of_a_second_source_lost(patch: Patch) -> None:
    """Once an input has too much waiting, nobody reads the rest of the stream; nobody counts what came."""
    read_for = LiveInputs.read_for

    def stopping(self: LiveInputs, asking: LiveRows) -> bool:
        more = read_for(self, asking)
        if any(rows.left_behind for rows in self._inputs.values()):
            self.ended = True
        return more

    patch.setattr(LiveInputs, "read_for", stopping)
    patch.setattr(CountedStream, "stamped", lambda _, report: report)
    for count in ("misdelivered", "miscounted"):
        patch.setattr(advance, count, lambda *_: ())


def two_edges_of_one_name(patch: Patch) -> None:
    """Edges are numbered by their consumers alone; nobody looks at the finished graph."""
    patch.setattr(compiler, "edge_names", names._numbered_by_consumer)
    patch.setattr(graph, "require_distinct", lambda *_: None)


def rows_overtake_earlier_ones(patch: Patch) -> None:
    """No edge waits for rows that arrived earlier."""
    patch.setattr(compiler, "with_order", lambda pipeline: pipeline)


FAULTS = (rows_of_a_second_source_lost, two_edges_of_one_name, rows_overtake_earlier_ones)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_that_is_put_back_is_noticed(fault: Callable[[Any], None], monkeypatch: Patch) -> None:
    fault(monkeypatch)
    oracle = Oracle()
    seed = next((seed for seed in range(PIPELINES_MAX) if not judge_seed(oracle, seed).passed), None)
    assert seed is not None, f"{fault.__name__} survives {PIPELINES_MAX} pipelines"
