"""Giving up in-flight records by name: pure decisions on manifests (B15)."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from penstock.protocol.advance import unbalanced
from penstock.protocol.evolve import Allowed, Changed, Evolution, evolve
from penstock.protocol.evolved import dropped_rows, evolved
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.manifest import EdgeShape, EdgeState, Manifest, OperatorShape, PipelineShape, Segment, Span
from penstock.protocol.recover import edges_named, first_manifest

# a source feeds "left" and "right", both feed "join", into which "also" is fused
ENDS = {"s-to-left": "left", "s-to-right": "right", "left-to-join": "join", "right-to-join": "join"}
SHAPE = PipelineShape(
    sources={"s": ()},
    operators={
        name: OperatorShape(kind="pass", stage="join" if name == "also" else name, output=())
        for name in ("left", "right", "join", "also")
    },
    edges={
        edge: EdgeShape(producer=edge.partition("-")[0], consumer=stage, keys=(), columns=())
        for edge, stage in ENDS.items()
    },
    sinks=(),
)


def edge_with(rows: int) -> EdgeState:
    if not rows:
        return EdgeState(accepted=10, consumed=10)
    span = Span(ranges=(KeyGroupRange(0, 4),), cursor=0, rows_left=rows)
    segment = Segment(path="p", epoch=1, producer=0, sequence=0, rows=rows, bytes=rows * 8, checksum="", spans=(span,))
    return EdgeState(accepted=10 + rows, consumed=7, dropped=3, segments=(segment,))


def manifest() -> Manifest:
    empty = first_manifest(identity="i", library="0", max_parallelism=4, shape=SHAPE, created_at="")
    edges = {name: edge_with(rows) for rows, name in enumerate(ENDS)}
    return msgspec.structs.replace(empty, checkpoint=5, edges=edges)


@pytest.mark.parametrize(
    ("names", "edges", "unknown"),
    [
        (["left"], {"s-to-left"}, ()),
        (["join"], {"left-to-join", "right-to-join"}, ()),
        (["also"], {"left-to-join", "right-to-join"}, ()),
        (["left-to-join", "right"], {"left-to-join", "s-to-right"}, ()),
        (["s", "left", "nothing"], {"s-to-left"}, ("s", "nothing")),
    ],
)
def test_a_name_is_that_of_an_edge_or_of_an_operator_behind_edges(
    names: list[str], edges: set[str], unknown: tuple[str, ...]
) -> None:
    assert edges_named(SHAPE, names) == (frozenset(edges), unknown)


def test_whatever_is_dropped_records_add_up_and_other_edges_stay() -> None:
    """A7, B15: exhaustive over sets of edges; what was dropped before stays counted."""
    before = manifest()
    for chosen in itertools.chain.from_iterable(itertools.combinations(ENDS, count) for count in range(5)):
        evolution = evolve(before, Changed(SHAPE, sources_by_name=True), Allowed(drop_in_flight=chosen))
        assert isinstance(evolution, Evolution)
        after, dropped = evolved(before, SHAPE, evolution), dropped_rows(before, evolution)
        assert unbalanced(after.edges) == ()
        assert {part.edge: part.rows for part in dropped} == {
            name: before.edges[name].rows_in_flight for name in chosen if before.edges[name].rows_in_flight
        }
        for name, edge in before.edges.items():
            if name in chosen:
                assert after.edges[name].rows_in_flight == 0
                assert after.edges[name].dropped == edge.dropped + edge.rows_in_flight
            else:
                assert after.edges[name] == edge
        counted = {f"{part.edge}.dropped": part.rows for part in dropped}
        assert after.counters == counted
        same = msgspec.structs.replace(after, edges=before.edges, counters={}, stages={}, shape=before.shape)
        assert same == before
