"""A smaller pipeline that still differs: one output, less of a schedule, fewer rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.generated.program import Program, Step
from tests.generated.sources import Input

Fails = Callable[[Program], bool]
TRIES_MAX = 120


def shrunk(program: Program, fails: Fails) -> Program:
    """What is left when nothing more can be taken away in so many tries."""
    tries = 0
    found = True
    while found and tries < TRIES_MAX:
        found = False
        for candidate in _smaller(program):
            tries += 1
            if fails(candidate):
                program, found = candidate, True
                break
            if tries >= TRIES_MAX:
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    if len(program.outputs) > 1:
        for output in program.outputs:
            if not output.must:
                # What must be read goes with whatever has it.
                inputs = {node.number for node in _all_below(output)}
                musts = [node for node in program.outputs if node.must and node.inputs[0].number in inputs]
                fewer = [output, *musts]
                if len(fewer) < len(program.outputs):
                    yield _with(program, outputs=fewer)
    yield from _calmer(program)
    yield from _fewer_rows(program)


def _all_below(node: object) -> Iterator[object]:
    yield node
    for part in node.inputs:  # type: ignore[attr-defined]
        yield from _all_below(part)


def _calmer(program: Program) -> Iterator[Program]:
    schedule = program.schedule
    for number, step in enumerate(schedule.steps):
        if step != Step():
            steps = [*schedule.steps[:number], Step(), *schedule.steps[number + 1 :]]
            yield _with(program, schedule=replace(schedule, steps=steps))
    if schedule.barrier is not None:
        yield _with(program, schedule=replace(schedule, barrier=None))
    if schedule.parallelism > 1:
        yield _with(program, schedule=replace(schedule, parallelism=1))


def _fewer_rows(program: Program) -> Iterator[Program]:
    batches = program.input.batches
    for number, batch in enumerate(batches[:-1]):  # the last rows close everything
        for index, rows in batch.items():
            for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]) if len(rows) > 1 else ([],) if rows else ():
                changed = {**batch, index: part}
                yield _with(program, input=Input([*batches[:number], changed, *batches[number + 1 :]]))


def _with(program: Program, **changes: object) -> Program:
    return replace(program, **changes)  # type: ignore[arg-type]
