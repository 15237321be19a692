"""Errors without the frames of Penstock above them: the message says it all, and users should see their own line.

With the environment variable `PENSTOCK_DEBUG` set to anything, everything is shown.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from penstock.errors import PenstockError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

DEBUG = "PENSTOCK_DEBUG"


def plain_errors(function: Callable[P, R]) -> Callable[P, R]:
    """A function that users call: a `PenstockError` seems to be raised right here, and by nothing else."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except PenstockError as error:
            if os.environ.get(DEBUG):
                raise
            raise error.with_traceback(None) from None

    return call


def plain_methods(kind: type[T]) -> type[T]:
    """`plain_errors` for all public methods of a class."""
    for name, method in list(vars(kind).items()):
        if not name.startswith("_") and inspect.isfunction(method):
            setattr(kind, name, plain_errors(method))
    return kind
