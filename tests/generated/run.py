"""One seed after the other: draw a pipeline, run it, compare."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from tests.generated.oracle import Oracle
from tests.generated.program import Program, draw_program
from tests.generated.world import run


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a pipeline: texts by output, or by -1 where it did not run to its end."""

    program: Program
    differences: dict[int, str]

    @property
    def passed(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        found = "\n".join(f"t{number}:\n{text}" for number, text in self.differences.items())
        return f"{self.program}\n{found}"


def judge(oracle: Oracle, program: Program) -> Verdict:
    try:
        emitted = run(program)
    except Exception:  # noqa: BLE001 - whatever a pipeline ends with is a difference
        return Verdict(program, {-1: traceback.format_exc()})
    return Verdict(program, oracle.differences(program, emitted))


def judge_seed(oracle: Oracle, seed: int) -> Verdict:
    return judge(oracle, draw_program(seed))
