"""What the processes of `python -m tests.generated` do; they cannot import its main module."""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from tests.generated.oracle import Oracle
from tests.generated.run import judge, judge_seed
from tests.generated.shrink import shrunk


def one_thread() -> None:
    """Arrow's threads only get in each other's way where every processor has a process of ours."""
    pa.set_cpu_count(1)


@cache
def database() -> Oracle:
    return Oracle()


def text_of(seed: int) -> tuple[int, str]:
    """Empty if nothing differs."""
    oracle = database()
    verdict = judge_seed(oracle, seed)
    if verdict.passed:
        return seed, ""
    small = shrunk(verdict.program, lambda program: not judge(oracle, program).passed)
    return seed, f"{judge(oracle, small)}\n(whole: {sorted(verdict.differences)})"
