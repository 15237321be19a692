"""A handful of changes on real Spark, with a backlog and a kill in the first epoch after; `make changes` has all."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.changes import run
from tests.support.changing_programs import KINDS, Case, cases

CASES = (
    ("filter added", "renamed"),
    ("key changed", "listener added"),
    ("second output added", "another table"),
    ("forked", "aggregate added"),
)


def test_changed_programs_that_are_killed_in_their_first_epoch_do_what_the_guide_says(
    spark: SparkSession, tmp_path: Path
) -> None:
    """F1, F3, F5, F7: one table each, read back and compared with what follows from both programs."""
    found = run(tmp_path, [Case(number, kinds) for number, kinds in enumerate(CASES)], spark)
    assert {name: problems for name, problems in found.items() if problems} == {}


def test_sixty_changes_are_each_kind_alone_and_pairs_of_them() -> None:
    drawn = cases(60, seed=1)
    assert {case.kinds[0] for case in drawn if len(case.kinds) == 1} == set(KINDS)
    assert len({case.kinds for case in drawn}) == 60
