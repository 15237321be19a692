"""How a command finds a program: ``FILE.py:FUNCTION``. The function returns what would be given to `start`."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import penstock as pen
from penstock.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Job:
    """What the function of a program returned."""

    outputs: tuple[pen.Output, ...]
    arguments: Mapping[str, Any]
    """Of `start`: options that the program always has, its sink for dead letters."""

    def with_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of `start`; what the user says on the command line counts more."""
        own = {name: value for name, value in self.arguments.items() if name != "checkpoint"}
        return {**own, **options}


def job_of(job: str) -> Job:
    """The program that ``FILE.py:FUNCTION`` names.

    Raises: `ConfigError`.
    """
    path, _, name = job.rpartition(":")
    if not path or not name.isidentifier():
        raise _not_a_job(job, "write it as FILE.py:FUNCTION, for example job.py:build")
    file = Path(path)
    if not file.is_file():
        raise _not_a_job(job, f"there is no file {path}")
    function = getattr(_module(file), name, None)
    if not callable(function):
        raise _not_a_job(job, f"{path} has no function {name}")
    made = _called(function)
    arguments = {part: value for part, value in made.items() if part != "outputs"} if isinstance(made, dict) else {}
    found = made.get("outputs", ()) if isinstance(made, dict) else made
    outputs = [found] if isinstance(found, pen.Output) else found
    if not isinstance(outputs, list | tuple) or not all(isinstance(one, pen.Output) for one in outputs):
        raise _not_a_job(
            job,
            f"{name} returned {type(made).__name__}: return an output, a list of outputs, or a dictionary with them",
        )
    return Job(tuple(outputs), arguments)


def _module(file: Path) -> Any:
    sys.path.insert(0, str(file.parent.resolve()))  # a program imports its neighbours, as when it is run
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def _called(function: Callable[..., Any]) -> Any:
    return function(pen.session()) if inspect.signature(function).parameters else function()


def _not_a_job(job: str, next_step: str) -> ConfigError:
    return ConfigError(f"{job!r} is not a job", cause="a typo in the path or the name", next_step=next_step)
