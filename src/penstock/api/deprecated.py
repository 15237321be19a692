"""Old public names. They work for one more release, and a `DeprecationWarning` tells the new name."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from penstock.errors import ConfigError

RENAMED: Mapping[str, str] = {
    "sliding": "sliding_window",
    "tumbling": "tumbling_window",
    "value": "value_state",
}
"""Old and new names in the package `penstock`."""

P = ParamSpec("P")
R = TypeVar("R")


def warn_renamed(old: str, new: str, *, stacklevel: int = 2) -> None:
    """Warns at the line that uses the old name. `stacklevel` 2 is the caller of the function that calls this one."""
    warnings.warn(f"{old} is now called {new}", DeprecationWarning, stacklevel=stacklevel + 1)


def renamed_argument(old: str, new: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The decorated function takes the keyword `old` for `new`; type checkers and `help` know `new` alone.

    Raises, when called: `ConfigError` if both are given.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if old in kwargs:
                name = function.__name__
                if new in kwargs:
                    raise ConfigError(
                        f"{name}() got both {old}= and {new}=",
                        cause=f"{old} is the old name of {new}",
                        next_step=f"leave {old}= out",
                        option=old,
                    )
                # Public functions are called through `plain_errors`.
                warn_renamed(f"{name}({old}=…)", f"{name}({new}=…)", stacklevel=3)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate
