"""Which sorted runs of a bucket are merged, and that runs stay in the order of their age."""

from __future__ import annotations

import random

from penstock.protocol.sorted_runs import BucketRun, KeyRange, Merge, Tiering, rewrites, runs_to_merge, sections

PAIMON = Tiering()


def test_fewer_runs_than_the_trigger_stay() -> None:
    assert runs_to_merge([BucketRun(0, 1)] * 3 + [BucketRun(5, 100)], PAIMON) is None


def test_new_files_of_alike_size_become_one_below_the_oldest_run() -> None:
    assert runs_to_merge([BucketRun(0, 10)] * 5 + [BucketRun(5, 1000)], PAIMON) == Merge(5, 4)


def test_all_runs_become_one_when_newer_ones_outweigh_the_oldest() -> None:
    assert runs_to_merge([BucketRun(0, 100)] * 5 + [BucketRun(5, 200)], PAIMON) == Merge(6, 5)


def test_a_run_that_is_much_larger_than_those_above_it_is_left_alone() -> None:
    runs = [BucketRun(0, 1)] * 4 + [BucketRun(3, 50), BucketRun(4, 200), BucketRun(5, 1000)]
    assert runs_to_merge(runs, PAIMON) == Merge(4, 2)


def test_too_many_runs_are_merged_even_if_their_sizes_differ() -> None:
    runs = [
        BucketRun(0, 1),
        BucketRun(0, 10),
        BucketRun(0, 100),
        BucketRun(0, 1000),
        BucketRun(0, 10_000),
        BucketRun(5, 1_000_000),
    ]
    merge = runs_to_merge(runs, PAIMON)
    assert merge is not None
    assert merge.count >= 2


def test_level_0_is_emptied_where_readers_do_not_look_at_it() -> None:
    assert runs_to_merge([BucketRun(0, 1), BucketRun(5, 100)], PAIMON, raise_new=True) == Merge(1, 4)
    assert runs_to_merge([BucketRun(0, 1)], PAIMON, raise_new=True) == Merge(1, 5)
    assert runs_to_merge([BucketRun(4, 1), BucketRun(5, 100)], PAIMON, raise_new=True) is None


def test_whatever_comes_runs_keep_their_order_and_no_level_holds_two() -> None:
    """The result of a merge lies between the runs above and below it, so newer rows stay in newer runs."""
    for seed in range(300):
        dice = random.Random(seed)
        tiering = Tiering(trigger=dice.randrange(2, 7), excess_percent=dice.choice([50, 200]), levels=7)
        runs: list[BucketRun] = []
        raise_new = dice.random() < 0.3
        for _ in range(200):
            runs.insert(0, BucketRun(0, dice.randrange(1, 100)))
            while (merge := runs_to_merge(runs, tiering, raise_new=raise_new)) is not None:
                merged = BucketRun(merge.level, sum(run.bytes for run in runs[: merge.count]))
                runs = [merged, *runs[merge.count :]]
                assert merge.level > 0
            levels = [run.level for run in runs if run.level]
            assert levels == sorted(set(levels))
            assert [run.level for run in runs] == sorted(run.level for run in runs)
            assert len(runs) <= tiering.trigger
            assert not raise_new or 0 not in {run.level for run in runs}


def test_a_row_is_rewritten_a_few_dozen_times_in_thousands_of_commits() -> None:
    runs: list[BucketRun] = []
    rewritten = 0
    for _ in range(5_000):
        runs.insert(0, BucketRun(0, 10))
        while (merge := runs_to_merge(runs, PAIMON)) is not None:
            size = sum(run.bytes for run in runs[: merge.count])
            rewritten += size
            runs = [BucketRun(merge.level, size), *runs[merge.count :]]
    assert rewritten / 50_000 < 30


def test_sections_hold_files_whose_keys_meet_directly_or_through_others() -> None:
    ranges = [KeyRange((0,), (5,)), KeyRange((5,), (7,)), KeyRange((6,), (9,)), KeyRange((10,), (10,))]
    assert sections(ranges) == [[0, 1, 2], [3]]


def test_large_files_that_meet_no_other_are_not_copied() -> None:
    assert rewrites([[0], [1], [2], [3, 4]], [1, 100, 1, 50, 50], 100) == [[[0]], [[1]], [[2], [3, 4]]]
