"""What people write about parallelism, as a number for every stage."""

from __future__ import annotations

import pytest

from penstock.protocol.parallelism import (
    TooParallel,
    UnknownOperators,
    asked_by_stage,
    by_stage,
    first_parallelism,
    too_parallel,
)

STAGE_OF = {"parse": "parse", "enrich": "parse", "totals": "totals"}


def test_one_number_is_that_of_every_stage() -> None:
    assert asked_by_stage(8, STAGE_OF) == by_stage(8, STAGE_OF, 128) == {"parse": 8, "totals": 8}


@pytest.mark.parametrize("operator", ["parse", "enrich"])
def test_any_operator_of_a_stage_names_it(operator: str) -> None:
    assert asked_by_stage({operator: 8}, STAGE_OF) == {"parse": 8}


def test_a_stage_that_is_not_named_gets_the_default() -> None:
    assert by_stage({"enrich": 8}, STAGE_OF, 128) == {"parse": 8, "totals": 4}


def test_the_default_is_not_above_the_number_of_key_groups() -> None:
    assert by_stage({"enrich": 1}, STAGE_OF, 3) == {"parse": 1, "totals": 3}


def test_operators_that_are_not_there_are_told_with_those_that_are() -> None:
    unknown = UnknownOperators(("else", "other"), ("parse", "enrich", "totals"))
    asked = {"other": 2, "parse": 3, "else": 4}
    assert asked_by_stage(asked, STAGE_OF) == by_stage(asked, STAGE_OF, 128) == unknown


def test_there_are_no_more_subtasks_than_key_groups() -> None:
    assert (too_parallel(129, 128), too_parallel(128, 128)) == (TooParallel(None, 129), None)
    assert (too_parallel({"a": 9}, 8), too_parallel({"a": 8}, 8)) == (TooParallel("a", 9), None)


def test_a_run_with_autoscaling_begins_where_the_checkpoint_was() -> None:
    asked, stored = {"a": 4, "b": 4, "c": 4}, {"a": 9, "b": 1}
    assert first_parallelism(asked, stored, None) == asked
    assert first_parallelism(asked, stored, (2, 8)) == {"a": 8, "b": 2, "c": 4}
