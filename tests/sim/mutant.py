"""What a mutant is: one fault in our own code, applied while a ring of tests runs."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from tests.sim.faulty import Make


@dataclass(frozen=True)
class Anywhere:
    """A function of a module, wherever it was imported."""

    module: ModuleType

    def owners(self, attribute: str) -> Iterator[ModuleType]:
        original = getattr(self.module, attribute)
        for name, module in list(sys.modules.items()):
            if name.startswith(("penstock", "tests")) and vars(module).get(attribute) is original:
                yield module


@dataclass
class Calls:
    """How often the faults of a mutant were called: one that never was cannot be what failed a test."""

    count: int = 0
    misfit: str | None = None
    """What a replacement raised by itself: it no longer fits what it replaces, and any test would notice that."""

    def counted(self, replacement: Any) -> Any:
        @functools.wraps(replacement)
        def call(*args: Any, **rest: Any) -> Any:
            self.count += 1
            try:
                return replacement(*args, **rest)
            except Exception as error:
                if _raised_in_a_replacement(error):
                    self.misfit = repr(error)
                raise

        return call


def _raised_in_a_replacement(error: Exception) -> bool:
    *_, (innermost, _) = traceback.walk_tb(error.__traceback__)
    return Path(innermost.f_code.co_filename).parent == Path(__file__).parent


@dataclass(frozen=True)
class Mutant:
    """`patches` are (owner, attribute, what makes the replacement from the original); `tests` are the files of which
    one must fail, none for a fault that the simulator must notice."""

    name: str
    what: str
    patches: tuple[tuple[Any, str, Make], ...]
    tests: tuple[str, ...] = ()

    @contextmanager
    def applied(self) -> Iterator[Calls]:
        calls = Calls()
        with ExitStack() as stack:
            for owner, attribute, mutate in self.patches:
                owners = list(owner.owners(attribute)) if isinstance(owner, Anywhere) else [owner]
                made = _replacement(vars(owners[0])[attribute], mutate, calls.counted)
                for place in owners:
                    stack.enter_context(patch.object(place, attribute, made))
            yield calls


def _replacement(original: Any, mutate: Make, counted: Callable[[Any], Any]) -> Any:
    if isinstance(original, property):
        return property(counted(mutate(original.fget)))
    assert not isinstance(original, staticmethod | classmethod), "its replacement would get another first argument"
    return counted(mutate(original))
