"""Which state files a flush rewrites, for states of any size (D6)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocol.keygroups import KeyGroupRange
from penstock.state.tiers import FILES_MAX, MERGE_BYTES, MERGE_PER_CHANGE, SECTION_BYTES, plan_merges, sections

ROW_BYTES = 40


class World:
    """Rows by file and section, as flushes leave them; keys are drawn from many, so rows add up."""

    def __init__(self, count: int, rows: int) -> None:
        self.sizes = np.full((1, count), rows // count, np.int64)
        self.rewritten: list[int] = []

    def flush(self, changed: np.ndarray) -> None:
        added = np.zeros(len(changed), np.int64)
        before = self.sizes.copy()
        for merge in plan_merges(self.sizes, changed, ROW_BYTES):
            added[merge.section] = changed[merge.section] + self.sizes[merge.kept :, merge.section].sum()
            self.sizes[merge.kept :, merge.section] = 0
            assert merge.last == (not before[: merge.kept, merge.section].any())
        assert self.sizes.sum() + added.sum() == before.sum() + changed.sum()
        self.sizes = np.vstack([self.sizes[self.sizes.any(axis=1)], added])
        self.rewritten.append(int(added.sum()))

    @property
    def depth(self) -> int:
        return int((self.sizes > 0).sum(axis=0).max())


@pytest.mark.parametrize("rows", [1_000, 1_000_000, 25_000_000])
def test_what_a_flush_rewrites_follows_from_what_changed(rows: int) -> None:
    """D6: 1,000 epochs of the same changes, on states of very different sizes."""
    cut = sections(KeyGroupRange(0, 64), rows, ROW_BYTES)
    world, changed = World(len(cut), rows), np.full(len(cut), 20_000 // len(cut))
    files = 0
    for _ in range(1_000):
        world.flush(changed)
        assert world.depth <= 2 * FILES_MAX
        files = max(files, len(world.sizes))
    allowed = max(MERGE_BYTES // ROW_BYTES, MERGE_PER_CHANGE * int(changed.sum()))
    largest_section = int(world.sizes.sum(axis=0).max())
    assert max(world.rewritten) <= 1.5 * (allowed + largest_section)
    assert np.mean(world.rewritten) <= 16 * changed.sum()
    assert files <= FILES_MAX * 8


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 60_000), min_size=8, max_size=8), min_size=1, max_size=60))
def test_any_changes_keep_the_number_of_files_of_a_section_bounded(epochs: list[list[int]]) -> None:
    world = World(8, 30_000_000)
    for changed in epochs:
        world.flush(np.array(changed, np.int64))
        assert world.depth <= 2 * FILES_MAX


def test_sections_split_in_halves_as_the_state_grows() -> None:
    groups = KeyGroupRange(5, 69)
    assert sections(groups, 1, ROW_BYTES) == (groups,)
    bounds: set[int] = set()
    for doubled in range(12):
        cut = sections(groups, SECTION_BYTES // ROW_BYTES << doubled, ROW_BYTES)
        assert bounds <= {part.lo for part in cut}
        assert (cut[0].lo, cut[-1].hi) == (5, 69)
        bounds = {part.lo for part in cut}
    assert len(bounds) == 64
