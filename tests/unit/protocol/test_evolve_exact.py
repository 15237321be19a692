"""Changes that cannot be exact are refused, whatever names fit, and what is refused names a way that works."""

from __future__ import annotations

import msgspec
import pytest

from penstock.protocol.evolve import Allowed, Changed, Evolution, evolve
from penstock.protocol.evolve_state import StateRules
from penstock.protocol.fates import PartFate
from penstock.protocol.ids import CheckpointId
from penstock.protocol.manifest import (
    Committable,
    EdgeShape,
    InputName,
    OperatorShape,
    OutputName,
    PendingCommit,
    PipelineShape,
    Rerouted,
    SinkState,
)
from penstock.protocol.recover import edges_named
from tests.support.evolving import bad_name, checkpoint_of, lines, words

USER, PANE, N = ("user", "int64"), ("__pane", "int64"), ("n", "int64")


def operator(kind: str, state: dict[str, tuple[tuple[str, str], ...]], **more: object) -> PipelineShape:
    shape = OperatorShape(kind=kind, stage="op", output=(), state=state, **more)  # type: ignore[arg-type]
    return PipelineShape(sources={}, operators={"op": shape}, edges={}, sinks=())


@pytest.mark.parametrize(
    ("before", "after", "keys"),
    [
        (
            operator("tumbling_window/10", {"": (USER, PANE, N)}),
            operator("tumbling_window/20", {"": (USER, PANE, N)}),
            2,
        ),
        (operator("tumbling_window/10", {"": (USER, PANE, N)}), operator("process", {"": (USER, N)}), 1),
        (operator("process", {"": (USER, N)}), operator("tumbling_window/10", {"": (USER, PANE, N)}), 2),
    ],
    ids=["other panes", "a row for each pane", "no pane"],
)
def test_no_function_moves_rows_to_other_windows(before: PipelineShape, after: PipelineShape, keys: int) -> None:
    """A function changes values, and rows of windows lie by panes, which are numbered by the length of the window."""
    new = Changed(after, {"op": StateRules(keys)}, sources_by_name=True)
    told = lines(before, new, Allowed(migrate=frozenset({"op"})))["operator op"]
    assert told.refused
    assert "migrate=" not in told.detail
    assert "reset=['op']" in told.detail


def test_the_next_step_names_a_table_that_a_function_can_be_given_for() -> None:
    before = operator("join/20", {"left": (USER, N), "right": (USER, N)})
    after = operator("join/20", {"left": (USER, N, ("more", "int64")), "right": (USER, N)})
    told = lines(before, Changed(after, {"op/left": StateRules(1)}, sources_by_name=True))["state op/left"]
    assert "migrate={'op/left': function}" in told.detail


def test_to_forget_one_map_does_not_forget_another() -> None:
    before = operator("connect", {"rates": (USER, N), "tax_rates": (USER, N)})
    after = operator("connect", {})
    told = lines(before, after, Allowed(forget=frozenset({"op.rates"})))
    assert told["state op/rates"].word == "forgotten"
    assert told["state op/tax_rates"].refused
    assert "forget=['op.tax_rates']" in told["state op/tax_rates"].detail


def test_to_forget_one_field_does_not_forget_another() -> None:
    before = operator("process", {"": (USER, ("price", "int64"), ("price__sum", "int64"), N)})
    after = operator("process", {"": (USER, N)})
    new = Changed(after, {"op": StateRules(1, may_grow=True)}, sources_by_name=True)
    told = lines(before, new, Allowed(forget=frozenset({"op.price"})))["state op"]
    assert "forget=['op.price__sum']" in told.detail


def pair(left: str, right: str) -> PipelineShape:
    columns = (USER, N)
    return PipelineShape(
        sources={"a": columns, "b": columns},
        operators={
            "op": OperatorShape(
                kind="join/20",
                stage="op",
                output=columns,
                state={"left": columns, "right": columns},
                inputs=(OutputName(left), OutputName(right)),
            )
        },
        edges={
            f"{one}-to-op": EdgeShape(producer=one, consumer="op", keys=("user",), columns=columns)
            for one in (left, right)
        },
        sinks=(),
    )


def test_a_join_whose_sides_change_places_would_take_the_rows_of_the_other() -> None:
    told = lines(pair("a", "b"), pair("b", "a"))["operator op"]
    assert told.refused
    assert "a" in told.detail
    assert words(pair("a", "b"), pair("a", "b"))["operator op"] == "carried"


def leftover() -> PipelineShape:
    """Rows that `first` has emitted and that go to `second` once more."""
    columns = (USER, N)
    return PipelineShape(
        sources={"source": columns},
        operators={
            name: OperatorShape(kind="map", stage=name, output=columns, inputs=(OutputName(before),))
            for before, name in (("source", "first"), ("first", "second"))
        },
        edges={
            "source-to-first": EdgeShape(producer="source", consumer="first", keys=(), columns=columns),
            "first-to-second": EdgeShape(producer="first", consumer="second", keys=("user",), columns=columns),
            "again-first-to-second": EdgeShape(
                producer="first",
                consumer="first",
                keys=(),
                columns=columns,
                rerouted=Rerouted(output=OutputName("first"), to=(InputName("second"),)),
            ),
        },
        sinks=("sink",),
        written={"sink": (OutputName("second"),)},
    )


def test_rows_that_go_once_more_are_on_their_way_to_their_reader() -> None:
    assert edges_named(leftover(), ["first"]) == (frozenset({"source-to-first"}), ())
    assert edges_named(leftover(), ["second"]) == (frozenset({"first-to-second", "again-first-to-second"}), ())


def pending() -> SinkState:
    waiting = PendingCommit(checkpoint=CheckpointId(5), committables=(Committable(payload=b"", rows=3, bytes=1),))
    return SinkState(pending=(waiting,))


def test_rows_of_a_sink_that_is_reset_can_be_given_up() -> None:
    shape = PipelineShape(sources={}, operators={}, edges={}, sinks=("out",))
    base = msgspec.structs.replace(checkpoint_of(shape), sinks={"out": pending()})
    reset = Allowed(reset=frozenset({"out"}))
    told = [line for line in _lines(base, shape, reset) if line.refused]
    assert "forget=['out']" in told[0].detail
    assert not any(line.refused for line in _lines(base, shape, Allowed(reset=reset.reset, forget=frozenset({"out"}))))
    assert bad_name(shape, shape, Allowed(forget=frozenset({"out"}))).option == "forget"


def _lines(base: object, shape: PipelineShape, allowed: Allowed) -> tuple[PartFate, ...]:
    decided = evolve(base, Changed(shape, sources_by_name=True), allowed)  # type: ignore[arg-type]
    assert isinstance(decided, Evolution), decided
    return decided.lines


def test_an_operator_whose_name_a_sink_has_now_is_refused_with_a_way_out() -> None:
    before = operator("process", {"": (USER, N)})
    after = PipelineShape(sources={}, operators={}, edges={}, sinks=("op",))
    told = lines(before, after)["operator op"]
    assert told.refused
    assert "'op' is a sink now: give that another name" in told.detail


def test_rows_whose_producer_is_gone_do_not_go_to_the_input_of_another_stream() -> None:
    """`b` moves to the place at which rows of `gone` were waiting."""
    before, after = pair("gone", "b"), pair("b", "c")
    base = checkpoint_of(before, state_rows=0, in_flight_rows={"gone-to-op": 4})
    new = msgspec.structs.replace(after, sources={"b": (USER, N), "c": (USER, N)})
    assert lines(base, new_of(new))["rows in flight gone-to-op"].refused
    kept = msgspec.structs.replace(pair("a", "b"), sources={"a": (USER, N), "b": (USER, N)})
    assert not lines(base, new_of(kept))["rows in flight gone-to-op"].refused


def new_of(shape: PipelineShape) -> Changed:
    return Changed(shape, sources_by_name=True)


def test_a_function_says_that_a_column_of_time_only_got_another_name() -> None:
    windows = [
        operator("tumbling_window/10", {"": (USER, PANE, N)}, computed={"window_start": f"of {time}"})
        for time in ("at", "ts")
    ]
    new = Changed(windows[1], {"op": StateRules(2)}, sources_by_name=True)
    assert "migrate={'op': function}" in lines(windows[0], new)["operator op"].detail
    assert lines(windows[0], new, Allowed(migrate=frozenset({"op"})))["state op"].word == "converted"
    sides = [
        operator("join/20", {"left": (USER, N), "right": (USER, N)}, computed={"left": f"by {time}", "right": "by at"})
        for time in ("at", "ts")
    ]
    rules = {"op/left": StateRules(1), "op/right": StateRules(1)}
    join = Changed(sides[1], rules, sources_by_name=True)
    assert "migrate={'op/left': function}" in lines(sides[0], join)["operator op"].detail
    told = lines(sides[0], join, Allowed(migrate=frozenset({"op/left"})))
    assert (told["state op/left"].word, told["state op/right"].word) == ("converted", "carried")
