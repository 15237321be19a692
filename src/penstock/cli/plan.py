"""``penstock plan``: what would become of a checkpoint if a program were started on it. Nothing runs."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

import penstock as pen
from penstock.cli.terminal import say, say_json
from penstock.errors import ConfigError

DOES_NOT_FIT = 2
"""The exit code where the query would not start."""


@click.command()
@click.argument("job")
@click.option("--checkpoint", required=True, help="The checkpoint folder.")
@click.option("--renamed", multiple=True, metavar="OLD=NEW", help="A new name; may be given several times.")
@click.option("--forget", multiple=True, metavar="NAME", help="State, or a sink, that may go.")
@click.option("--reset", multiple=True, metavar="NAME", help="An operator or a sink that begins anew; with --restore.")
@click.option("--drop-in-flight", multiple=True, metavar="NAME", help="Rows in flight that may go.")
@click.option("--restore", help="A checkpoint of the folder, or another folder.")
@click.option("--max-parallelism", type=int, help="As the query has it; default: as start has it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def plan(job: str, checkpoint: str, as_json: bool, **options: Any) -> None:
    """Tell what a start of JOB on a checkpoint would carry on, convert, forget or refuse.

    JOB is FILE.py:FUNCTION. The function returns an output, or a list of them; if it takes an argument, it gets a Spark
    session. Exit code 0: the query would start; 2: it would not.
    """
    given = {name: value for name, value in options.items() if value}
    if "renamed" in given:
        given["renamed"] = dict(_pair(text) for text in given["renamed"])
    made = pen.start(*outputs_of(job), checkpoint=checkpoint, dry_run=True, **given)
    if as_json:
        say_json(made.to_json())
    else:
        say(str(made))
    sys.exit(0 if made.fits else DOES_NOT_FIT)


def _pair(text: str) -> tuple[str, str]:
    old, _, new = text.partition("=")
    return old, new


def outputs_of(job: str) -> Sequence[pen.Output]:
    """The outputs that a program names: ``FILE.py:FUNCTION``.

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
    outputs = [made] if isinstance(made, pen.Output) else made
    if not isinstance(outputs, list | tuple) or not all(isinstance(one, pen.Output) for one in outputs):
        raise _not_a_job(job, f"{name} returned {type(made).__name__}: return an output, or a list of outputs")
    return outputs


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
