"""A checkpoint, a generation and a micro-batch are never bare numbers where one part hands them to another."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from penstock.protocol.ids import CheckpointId, Generation, next_checkpoint, next_generation
from tests.unit.test_architecture import PACKAGE

IDS = {"checkpoint": "CheckpointId", "generation": "Generation", "batch_id": "BatchId"}
TYPED = ("protocol", "engine", "inflight", "subtask", "sinks", "operators", "spark")


def bare_ids(source: str) -> Iterator[tuple[int, str]]:
    """Lines and names of parameters, fields and properties that are ids by their name, and numbers by their type."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.arg(arg=name, annotation=ast.expr() as kind):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind):
                pass
            case ast.FunctionDef(name=name, returns=ast.expr() as kind):
                pass
            case _:
                continue
        if name in IDS and any(isinstance(part, ast.Name) and part.id == "int" for part in ast.walk(kind)):
            yield node.lineno, name


def test_no_id_is_a_bare_number() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line} {name} is not a {IDS[name]}"
        for package in TYPED
        for path in (PACKAGE / package).rglob("*.py")
        for line, name in bare_ids(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "def f(checkpoint: int) -> None: ...",
        "class A:\n    generation: int | None = None",
        "def checkpoint(self) -> int: ...",
    ],
)
def test_a_bare_number_would_be_noticed(source: str) -> None:
    assert list(bare_ids(source))


def test_an_id_with_its_type_is_not_a_bare_number() -> None:
    assert not list(bare_ids("def f(checkpoint: CheckpointId | None, rows: int) -> int: ..."))


def test_the_next_checkpoint_and_the_next_generation_are_one_higher() -> None:
    assert (next_checkpoint(CheckpointId(41)), next_generation(Generation(6))) == (42, 7)
