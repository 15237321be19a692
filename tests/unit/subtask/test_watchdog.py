"""A subtask that does not get on is noticed, and the place where it is found."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

from penstock.protocol.hung import (
    Stuck,
    belongs_to,
    decode_stuck,
    encode_stuck,
    is_over,
    tells_why,
)
from penstock.protocol.layout import STUCK, AttemptId, HungSign
from penstock.subtask.watchdog import Place, Signs, Watchdog, Watched, place_of, stuck_at

LIMIT_S = 0.05


class Told:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.stuck = threading.Event()

    def signs(self) -> Signs:
        return Signs(stuck=self._stuck, alive=lambda _: None)

    def _stuck(self, place: Place, silent_s: float) -> None:
        assert silent_s > LIMIT_S
        self.places.append(place)
        self.stuck.set()


def test_a_step_that_does_not_end_is_told_once_with_its_stack() -> None:
    told = Told()
    with Watchdog(LIMIT_S, told.signs()) as watchdog:
        watchdog.clock()
        assert told.stuck.wait(30)
    (place,) = told.places
    assert any("test_a_step_that_does_not_end" in line for line in place.stack)


class ByHand:
    """A watchdog whose looks and whose time the test makes; what it told."""

    def __init__(self, patience_s: float = 0.0) -> None:
        self.now_s, self.told = 0.0, list[str]()
        signs = Signs(
            stuck=lambda _, silent_s: self.told.append(f"stuck for {silent_s:g} s"),
            alive=lambda number: self.told.append(f"alive {number}"),
        )
        self.watchdog = Watchdog(10.0, signs, lambda: self.now_s, patience_s=patience_s)

    def looks(self, seconds: int) -> None:
        for _ in range(seconds // 5):
            self.now_s += 5.0
            if not self.watchdog.look():
                return


def test_whoever_looks_at_the_clock_gets_on_and_is_told_to_be_alive() -> None:
    watched = ByHand()
    for _ in range(8):
        watched.watchdog.clock()
        watched.looks(5)
    assert watched.told == ["alive 1", "alive 2"]


def test_within_the_patience_for_an_operator_a_subtask_is_told_to_be_alive_at_each_limit() -> None:
    """The driver gives up a job of which it sees no sign for three times the limit, whatever operators may take."""
    watched = ByHand(patience_s=40.0)
    watched.looks(100)
    assert watched.told == ["alive 1", "alive 2", "alive 3", "stuck for 55 s"]


def test_waiting_for_rows_of_spark_is_not_judged() -> None:
    watched = ByHand()

    def slow() -> Iterator[int]:
        watched.looks(100)
        yield 1

    assert list(watched.watchdog.delivered(slow())) == [1]
    watched.looks(10)
    assert all(said.startswith("alive") for said in watched.told)
    watched.looks(5)
    assert watched.told[-1] == "stuck for 15 s"


def test_without_a_limit_nothing_is_watched() -> None:
    before = threading.active_count()
    with Watchdog(None, Told().signs()):
        assert threading.active_count() == before


def test_the_place_names_the_users_function_and_its_plain_values_only() -> None:
    inside, enough = threading.Event(), threading.Event()

    class Secretive:
        def __repr__(self) -> str:
            raise AssertionError("nobody may call this")

    def work(row: dict[str, Any], other: object) -> None:
        inside.set()
        enough.wait(30)

    ours: dict[str, Any] = {"__name__": "penstock.operators.some"}
    exec("class Operator:\n    def process(self, call):\n        call()", ours)
    task: dict[str, Any] = {"__name__": "penstock.subtask.attempt", "Watched": Watched}
    exec("class Attempt(Watched):\n    def step(self, call):\n        self.operators[1].process(call)", task)
    attempt = task["Attempt"]()
    attempt.operators = [ours["Operator"](), ours["Operator"]()]
    call = partial(work, {"user": 7, "odd": Secretive()}, Secretive())
    thread = threading.Thread(target=attempt.step, args=(call,))
    thread.start()
    assert inside.wait(30)
    assert thread.ident is not None
    place = place_of(thread.ident)
    enough.set()
    thread.join()
    assert place.operator == 1
    assert place.function is not None
    assert "work (" in place.function
    assert place.values == {"row": "{'user': 7, 'odd': …}"}


def test_a_sample_survives_its_journey_and_rubbish_does_not() -> None:
    place = Place(0, "f (x.py, line 3)", {"row": "{}"}, ["x"])
    stuck = stuck_at(place, stage="s", operators=["map"], subtask=3, attempt="17", silent_s=2.0)
    assert stuck.operator == "map"
    assert decode_stuck(encode_stuck(stuck)) == stuck
    assert decode_stuck(b"{") is None
    assert decode_stuck(b" " * (1 << 21)) is None
    assert isinstance(stuck, Stuck)


def test_signs_are_known_by_their_names() -> None:
    attempt = AttemptId(12, 2, 1, "17")
    path, alive = HungSign(attempt, STUCK).path, HungSign(attempt, "1").path
    assert belongs_to(path, 12, 2)
    assert not belongs_to(path, 12, 3)
    assert not belongs_to("segments/x", 12, 2)
    assert (tells_why(path), tells_why(alive)) == (True, False)
    assert [is_over(path, *now) for now in ((12, 2), (13, 2), (5, 3), (99, 1))] == [False, True, True, False]
    assert not is_over("hung/else.json", 99, 99)
