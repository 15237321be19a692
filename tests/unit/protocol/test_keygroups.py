"""Key groups: every world of up to 40 key groups, exhaustively."""

import numpy as np
import pytest

from penstock.protocol.keygroups import KeyGroupRange, groups_of, order_bound, order_of, range_of, subtask_of

WORLDS = [(p, m) for m in (1, 2, 7, 16, 33, 40) for p in range(1, m + 1)]


@pytest.mark.parametrize(("parallelism", "max_parallelism"), WORLDS)
def test_ranges_of_subtasks_partition_the_key_groups(parallelism: int, max_parallelism: int) -> None:
    """B3: each key group belongs to exactly one subtask."""
    owners = [k for k in range(parallelism) for _ in range(len(range_of(k, parallelism, max_parallelism)))]
    assert owners == [subtask_of(group, parallelism, max_parallelism) for group in range(max_parallelism)]
    assert all(len(range_of(k, parallelism, max_parallelism)) > 0 for k in range(parallelism))


def test_subtract_and_intersect_split_a_range_without_loss() -> None:
    ranges = [KeyGroupRange(lo, hi) for lo in range(6) for hi in range(lo + 1, 7)]
    for a in ranges:
        for b in ranges:
            inside = a.intersect(b)
            covered = set(range(inside.lo, inside.hi)) if inside else set()
            left = {g for part in a.subtract(b) for g in range(part.lo, part.hi)}
            assert left | covered == set(range(a.lo, a.hi))
            assert not left & covered


@pytest.mark.parametrize("max_parallelism", [1, 2, 3, 100, 128, 32768])
def test_order_sorts_by_key_group_first(max_parallelism: int) -> None:
    hashes = np.random.default_rng(7).integers(-(2**63), 2**63 - 1, 5_000)
    orders = order_of(hashes, max_parallelism)
    groups = groups_of(hashes, max_parallelism)
    assert (np.diff(groups[np.argsort(orders, kind="stable")]) >= 0).all()
    for group in range(0, max_parallelism, max(1, max_parallelism // 16)):
        low, high = order_bound(group, max_parallelism), order_bound(group + 1, max_parallelism)
        inside = (orders >= low) & (orders < high) if high is not None else orders >= low
        assert (inside == (groups == group)).all()
    assert order_bound(max_parallelism, max_parallelism) is None or max_parallelism & (max_parallelism - 1)
