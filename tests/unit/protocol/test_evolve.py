"""What becomes of every part of a checkpoint in another pipeline: the pure decision."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from penstock.protocol.advance import unbalanced
from penstock.protocol.columns import ColumnChange, column_change, is_wider
from penstock.protocol.evolve import Allowed, Changed, Evolution, evolve
from penstock.protocol.evolve_state import StateRules
from penstock.protocol.evolved import dropped_rows, evolved
from penstock.protocol.ids import CheckpointId
from penstock.protocol.manifest import (
    Committable,
    EdgeShape,
    InputName,
    Manifest,
    OperatorShape,
    OutputName,
    PendingCommit,
    PipelineShape,
    SinkState,
    SourcePosition,
)
from penstock.protocol.trust import why_not
from tests.support.evolving import bad_name, checkpoint_of, lines, words

A, B, C = ("a", "int64"), ("b", "string"), ("c", "double")


def operator(state: dict[str, tuple[tuple[str, str], ...]], kind: str = "process", **more: object) -> PipelineShape:
    shape = OperatorShape(kind=kind, stage="op", output=(), state=state, **more)  # type: ignore[arg-type]
    return PipelineShape(sources={}, operators={"op": shape}, edges={}, sinks=())


def chain(*names: str, keys: dict[str, tuple[str, ...]] | None = None, columns: tuple = (A, B)) -> PipelineShape:
    """source -> names[0] -> names[1] … -> sink, each operator a stage of its own."""
    ends = list(itertools.pairwise(("source", *names)))
    return PipelineShape(
        sources={"source": columns},
        operators={
            name: OperatorShape(kind="map", stage=name, output=columns, inputs=(OutputName(before),))
            for before, name in ends
        },
        edges={
            f"{before}-to-{name}": EdgeShape(
                producer=before, consumer=name, keys=(keys or {}).get(name, ()), columns=columns
            )
            for before, name in ends
        },
        sinks=("sink",),
        written={"sink": (OutputName(names[-1]),)},
    )


# -- state -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "current", "forget", "told"),
    [
        ({"": (A, B)}, {"": (A, B)}, (), {"": "carried"}),
        ({"": (A, B)}, {"": (A, C, B)}, (), {"": "converted"}),
        ({"": (A,)}, {"": (A, B), "timers": (A, C)}, (), {"": "converted", "timers": "new"}),
        ({"": (A, B)}, {"": (A,)}, (), {"": "refused"}),
        ({"": (A, B)}, {"": (A,)}, ("op.b",), {"": "converted"}),
        ({"": (A, B)}, {"": (B, A)}, (), {"": "refused"}),
        ({"": (A, B, C)}, {"": (A, C, B)}, (), {"": "converted"}),
        ({"": (A,)}, {"": (("a", "int32"), B)}, (), {"": "refused"}),
        ({"": (A, ("n", "int32"))}, {"": (A, ("n", "int64"))}, (), {"": "converted"}),
        ({"": (A, ("n", "int64"))}, {"": (A, ("n", "int32"))}, (), {"": "refused"}),
        ({"": (A, B, ("__expires_b", "int64"))}, {"": (A, B)}, (), {"": "converted"}),
        ({"": (A,), "timers": (A,)}, {"": (A,)}, (), {"timers": "refused"}),
        ({"": (A,), "timers": (A,)}, {"": (A,)}, ("op.timers",), {"timers": "forgotten"}),
        ({"": (A,), "event_timers": (A,)}, {"": (A,)}, ("op.timers",), {"event_timers": "forgotten"}),
        ({"": (A,)}, {"": (A,), "fixed": (A,)}, (), {"fixed": "refused"}),
        ({"fixed": (A,)}, {"fixed": (A, B)}, (), {"fixed": "refused"}),
        ({"": (A,)}, {"": (A, ("first", "string"))}, (), {"": "refused"}),
    ],
)
def test_state_may_differ_where_null_means_nothing_yet(
    stored: dict, current: dict, forget: tuple[str, ...], told: dict[str, str]
) -> None:
    """F1, F3, D3."""
    rules = {
        "op": StateRules(keys=1, may_grow=True, from_start=frozenset({"first"})),
        "op/timers": StateRules(keys=1, may_grow=True),
        "op/fixed": StateRules(keys=1),
    }
    changed = Changed(operator(current), rules)
    found = words(checkpoint_of(operator(stored)), changed, Allowed(forget=frozenset(forget)))
    for part, word in told.items():
        assert found[f"state op/{part}" if part else "state op"] == word
    other = words(checkpoint_of(operator(stored)), Changed(operator(current, "other"), rules))
    assert other["operator op"] == "refused", "another kind of operator"
    empty = words(checkpoint_of(operator(stored), state_rows=0), Changed(operator(current, "other"), rules))
    assert "refused" not in empty.values(), "there is nothing to lose"


def test_what_is_computed_must_stay_the_same() -> None:
    """E6: the state of a sum has the columns of a maximum's."""

    def computing(computed: dict[str, str] | msgspec.UnsetType) -> PipelineShape:
        return operator({"": (A, B)}, "aggregate", computed=computed)

    told = lines(computing({"a": "sum(x)"}), computing({"a": "max(x)"}))["operator op"]
    assert told.word == "refused"
    assert "checkpoint has a sum(x), pipeline has a max(x)" in told.detail
    assert "reset=['op']" in told.detail
    assert words(computing({"a": "sum(x)"}), computing({"a": "sum(x)"}))["operator op"] == "carried"
    assert words(computing(msgspec.UNSET), computing({"a": "sum(x)"}))["operator op"] == "carried", (
        "an older checkpoint cannot tell"
    )


def test_a_column_that_was_forgotten_does_not_come_back_with_old_values() -> None:
    """F3: files keep it."""
    rules = {"op": StateRules(keys=1, may_grow=True)}
    base = checkpoint_of(operator({"": (A, B)}))
    without = operator({"": (A,)})
    decided = evolve(base, Changed(without, rules), Allowed(forget=frozenset({"op.b"})))
    assert isinstance(decided, Evolution)
    after = evolved(base, without, decided)
    assert after.shape.operators["op"].gone == {"": ("b",)}
    again = lines(after, Changed(operator({"": (A, B)}), rules))["state op"]
    assert again.word == "refused"
    assert "was forgotten earlier" in again.detail


def test_a_sink_cannot_be_renamed_because_its_table_knows_it_by_name() -> None:
    old, new = (PipelineShape(sources={}, operators={}, edges={}, sinks=(name,)) for name in ("before", "after"))
    told = lines(old, new, Allowed(renamed={"before": "after"}))["sink after"]
    assert told.word == "refused"
    assert "name='before'" in told.detail
    assert words(old, new) == {"sink before": "forgotten", "sink after": "new"}


def test_state_of_an_operator_that_is_gone_is_refused_forgotten_or_renamed() -> None:
    """F1, F3."""
    old, gone = operator({"": (A, B)}), PipelineShape(sources={}, operators={}, edges={}, sinks=())
    assert words(old, gone) == {"operator op": "refused"}
    allowed = Allowed(forget=frozenset({"op"}))
    assert words(old, gone, allowed) == {"operator op": "forgotten", "state op": "forgotten"}
    new = msgspec.structs.replace(old, operators={"new": msgspec.structs.replace(old.operators["op"], stage="new")})
    base = checkpoint_of(old)
    decided = evolve(base, Changed(new), Allowed(renamed={"op": "new"}))
    assert isinstance(decided, Evolution)
    assert {line.name: line.word for line in decided.lines if line.kind == "state"} == {"new": "renamed"}
    assert evolved(base, new, decided).state == {"new": base.state["op"]}


@pytest.mark.parametrize(
    ("allowed", "option"),
    [
        (Allowed(renamed={"m": "x", "n": "x"}), "renamed"),
        (Allowed(renamed={"m": "nothing"}), "renamed"),
        (Allowed(renamed={"m": "n"}), "renamed"),
        (Allowed(renamed={"gone": "sink"}), "renamed"),
        (Allowed(renamed={"gone": "m"}), "renamed"),
        (Allowed(forget=frozenset({"m"})), "forget"),
        (Allowed(reset=frozenset({"gone"})), "reset"),
    ],
)
def test_options_that_name_what_they_cannot_mean_are_refused(allowed: Allowed, option: str) -> None:
    old, new = chain("gone", "m", "n"), chain("m", "n", "x")
    assert bad_name(old, new, allowed).option == option


def test_what_was_forgotten_or_renamed_by_an_earlier_start_may_still_be_named() -> None:
    """The same program starts again with the same options."""
    shape = chain("m", "n")
    allowed = Allowed(renamed={"old": "m"}, forget=frozenset({"gone", "m.column"}))
    assert set(words(shape, shape, allowed).values()) == {"carried"}


# -- sources and sinks -------------------------------------------------------------------------------------------------


def test_sources_that_are_known_by_place_stay_in_their_places() -> None:
    """F1: Spark would read on from another source's offset."""
    two = PipelineShape(sources={"a": (), "b": ()}, operators={}, edges={}, sinks=())
    swapped = PipelineShape(sources={"b": (), "a": ()}, operators={}, edges={}, sinks=())
    one = PipelineShape(sources={"a": ()}, operators={}, edges={}, sinks=())
    read = SourcePosition(batch_id=3)  # type: ignore[arg-type]
    base = checkpoint_of(two, source=read)
    assert set(words(base, Changed(two)).values()) == {"carried"}
    assert words(base, Changed(swapped)) == {"source b, a": "refused"}
    assert words(base, Changed(one)) == {"source b": "refused"}
    assert words(base, Changed(swapped, sources_by_name=True)) == {"source a": "carried", "source b": "carried"}
    assert words(base, Changed(one, sources_by_name=True)) == {"source a": "carried", "source b": "forgotten"}
    nothing_read = checkpoint_of(two)
    assert words(nothing_read, Changed(one)) == {"source a": "carried", "source b": "forgotten"}


def test_a_sink_that_ends_must_have_everything_in_its_table() -> None:
    """F3."""
    pending = PendingCommit(checkpoint=CheckpointId(4), committables=(Committable(b"x", 7, 100),))
    base = checkpoint_of(chain("m"), sinks={"sink": SinkState(pending=(pending,))})
    other = msgspec.structs.replace(chain("m"), sinks=("new",), written={"new": (OutputName("m"),)})
    told = lines(base, Changed(other))
    assert (told["sink sink"].word, told["sink sink"].rows, told["sink new"].word) == ("refused", 7, "new")
    assert words(base, Changed(other, in_table={"sink": 4}))["sink sink"] == "forgotten"
    assert words(base, Changed(other, in_table={"sink": 3}))["sink sink"] == "refused"
    assert words(base, Changed(other), Allowed(forget=frozenset({"sink"})))["sink sink"] == "forgotten"
    reset = lines(base, Changed(chain("m"), in_table={"sink": 4}), Allowed(reset=frozenset({"sink"})))
    assert reset["sink sink"].detail == "reset: gets rows from now on"


# -- rows in flight ----------------------------------------------------------------------------------------------------


def moved(base: Manifest, shape: PipelineShape, **allowed: object) -> Manifest:
    decided = evolve(base, Changed(shape, sources_by_name=True), Allowed(**allowed))  # type: ignore[arg-type]
    assert isinstance(decided, Evolution)
    assert not decided.refused, decided.refused
    return evolved(base, shape, decided)


def test_the_same_pipeline_has_the_same_checkpoint() -> None:
    """B1: nothing is made of it that was not there."""
    shape = chain("m", "n", keys={"n": ("a",)})
    base = checkpoint_of(shape, in_flight_rows={"source-to-m": 3, "m-to-n": 4}, parallelism={"m": 2, "n": 2})
    assert moved(base, shape) == base


def test_rows_go_to_an_operator_that_was_put_in_front() -> None:
    """F5: without a key any subtask may read them."""
    base = checkpoint_of(chain("m"), in_flight_rows={"source-to-m": 3})
    after = moved(base, chain("new", "m"))
    assert after.edges["source-to-new"].segments == base.edges["source-to-m"].segments
    assert after.edges["new-to-m"].rows_in_flight == 0


def test_rows_are_rerouted_to_another_key() -> None:
    """F5: their hash is that of the old key."""
    base = checkpoint_of(chain("m", "n", keys={"n": ("a",)}), in_flight_rows={"m-to-n": 3})
    shape = chain("m", "n", keys={"n": ("b",)})
    after = moved(base, shape)
    assert after.edges["m-to-n"].rows_in_flight == 0
    assert after.edges["again-m-to-n"].rows_in_flight == 3
    again = after.shape.edges["again-m-to-n"].rerouted
    assert (again.output, again.to) == (OutputName("m"), (InputName("n"),))
    assert moved(after, shape) == after, "a restart goes on with it"
    back = moved(after, chain("m", "n", keys={"n": ()}))
    assert back.edges["m-to-n"].rows_in_flight == 3


def test_a_key_of_a_wider_type_has_other_hashes() -> None:
    """F5: Spark hashes int and bigint of one value differently."""
    narrow = (("a", "int32"), B)
    base = checkpoint_of(chain("m", "n", keys={"n": ("a",)}, columns=narrow), in_flight_rows={"m-to-n": 3})
    after = moved(base, chain("m", "n", keys={"n": ("a",)}))
    assert after.edges["again-m-to-n"].rows_in_flight == 3


@pytest.mark.parametrize(
    ("columns", "keys", "word"),
    [
        ((A, B), (), "carried"),
        ((A, B, C), (), "converted"),
        ((A,), (), "converted"),
        ((B, A), (), "carried"),
        ((("a", "string"), B), (), "refused"),
        ((A, B, C), ("c",), "refused"),
    ],
)
def test_rows_in_flight_follow_the_columns_of_their_producer(columns: tuple, keys: tuple[str, ...], word: str) -> None:
    """F5."""
    base = checkpoint_of(chain("m", "n"), in_flight_rows={"m-to-n": 3})
    told = lines(base, chain("m", "n", columns=columns, keys={"n": keys}))["rows in flight m-to-n"]
    assert told.word == word
    assert (told.rows, told.bytes) == (3, 24)
    if word == "refused":
        assert "drop_in_flight=['m-to-n']" in told.detail


def test_every_chain_becomes_every_other_without_losing_a_row() -> None:
    """F1, F3, F5: all chains of up to three of four operators, keyed or not, rows in flight on every edge. Each edge's
    rows are carried, moved, rerouted, or refused by name; records add up, and the manifest holds together."""
    names = ["m", "n", "o"]
    chains = [part for count in (1, 2, 3) for part in itertools.permutations(names, count)]
    for before, after in itertools.product(chains, chains):
        for key_before, key_after in itertools.product([(), ("a",), ("b",)], repeat=2):
            old = chain(*before, keys=dict.fromkeys(before, key_before))
            new = chain(*after, keys=dict.fromkeys(after, key_after))
            base = checkpoint_of(old, in_flight_rows={name: number for number, name in enumerate(old.edges, 1)})
            decided = evolve(base, Changed(new, sources_by_name=True), Allowed())
            assert isinstance(decided, Evolution)
            assert {flow.edge for flow in decided.flows} == set(old.edges)
            drop = tuple(line.name for line in decided.refused)
            assert all(line.kind == "rows in flight" for line in decided.refused)
            allowed = evolve(base, Changed(new, sources_by_name=True), Allowed(drop_in_flight=drop))
            assert isinstance(allowed, Evolution)
            made = evolved(base, new, allowed)
            assert why_not(made) is None
            assert unbalanced(made.edges) == ()
            dropped = sum(part.rows for part in dropped_rows(base, allowed))
            assert made.rows_in_flight + dropped == base.rows_in_flight
            assert set(made.edges) == set(made.shape.edges)
            if before == after and key_before == key_after:
                assert made == base
            assert moved(made, new) == made, "a restart changes nothing more"


# -- columns -----------------------------------------------------------------------------------------------------------


def test_wider_types_hold_every_value() -> None:
    kinds = ["int8", "int16", "int32", "int64", "float", "double", "string", "decimal128(5, 2)", "decimal128(7, 3)"]
    wider = {(old, new) for old, new in itertools.product(kinds, kinds) if is_wider(old, new)}
    whole = list(itertools.combinations(kinds[:4], 2))
    assert wider == {*whole, ("float", "double"), ("decimal128(5, 2)", "decimal128(7, 3)")}


def test_equal_columns_have_no_change() -> None:
    assert column_change((A, B), (B, A)) == ColumnChange()
    assert str(ColumnChange()) == ""
