"""What a mutant is: one fault in our own code, applied while a ring of tests runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Mutant:
    """`patches` are (owner, attribute, what makes the replacement from the original); `tests` are the files of which
    one must fail, none for a fault that the simulator must notice."""

    name: str
    what: str
    patches: tuple[tuple[Any, str, Make], ...]
    tests: tuple[str, ...] = ()

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, attribute, mutate in self.patches:
                owners = list(owner.owners(attribute)) if isinstance(owner, Anywhere) else [owner]
                original = vars(owners[0])[attribute]
                made: Any = mutate(original.fget) if isinstance(original, property) else mutate(original)
                made = property(made) if isinstance(original, property) else made
                for place in owners:
                    stack.enter_context(patch.object(place, attribute, made))
            yield
