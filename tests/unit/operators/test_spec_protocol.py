"""What the compiler and a subtask may ask of an operator is in the protocol: they guess nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from penstock.operators.base import Operator, OperatorDefaults, OperatorSpec, SpecDefaults
from tests.unit.test_architecture import PACKAGE

ASKERS = ("graph", "subtask")


def guesses(source: str) -> Iterator[tuple[int, str]]:
    """Lines that ask whether an object has an attribute, or compare the name of a kind of operator."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id="hasattr" | "getattr")):
                yield node.lineno, ast.unparse(node)
            case ast.Compare(left=ast.Attribute(attr="kind")):
                yield node.lineno, ast.unparse(node)
            case ast.Compare(comparators=[ast.Attribute(attr="kind")]):
                yield node.lineno, ast.unparse(node)


def test_neither_the_compiler_nor_a_subtask_guesses_what_an_operator_has() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line} {text}"
        for package in ASKERS
        for path in (PACKAGE / package).rglob("*.py")
        for line, text in guesses(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "source", ['hasattr(spec, "keys")', 'getattr(spec, "keys", ())', 'node.spec.kind == "pass"', '"pass" != spec.kind']
)
def test_a_guess_would_be_noticed(source: str) -> None:
    assert list(guesses(source))


def asked(protocol: type) -> set[str]:
    return {name for name in vars(protocol) if not name.startswith("_")}


def test_a_spec_has_to_answer_four_questions_and_has_defaults_for_the_others() -> None:
    assert asked(OperatorSpec) - asked(SpecDefaults) == {"name", "kind", "output_schema", "build"}


def test_an_operator_has_to_process_and_has_defaults_for_the_rest() -> None:
    assert asked(Operator) - asked(OperatorDefaults) == {"process"}
    assert (list(OperatorDefaults().finish()), dict(OperatorDefaults().counters())) == ([], {})
