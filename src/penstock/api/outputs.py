"""The ends of streams, and the start of a query over them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar, Unpack, overload

from penstock.api.deprecated import renamed_argument
from penstock.api.shown import output_html, output_line
from penstock.engine.options import Config, Options
from penstock.graph.compiler import compile_pipeline
from penstock.graph.nodes import SinkNode
from penstock.plain import plain_errors, plain_methods
from penstock.sinks.base import Sink

if TYPE_CHECKING:
    import os

    from penstock.engine.dryrun import Plan
    from penstock.engine.history import OnEvent
    from penstock.engine.query import Query

P = ParamSpec("P")
R = TypeVar("R")


def _showing_options(function: Callable[P, R]) -> Callable[P, R]:
    """Lets `help` and notebooks show each option with its default; type checkers read them from `Options`."""
    declared = inspect.signature(function)
    defaults = {option.name: option.default for option in fields(Config) if option.default is not MISSING}
    types = {name: reference.__forward_arg__ for name, reference in Options.__annotations__.items()}
    shown = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[name])
        for name, default in defaults.items()
    ]
    own = [part for part in declared.parameters.values() if part.kind is not inspect.Parameter.VAR_KEYWORD]
    function.__signature__ = declared.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
    return function


@plain_methods
@dataclass(frozen=True, slots=True)
class Output:
    """A stream that ends in a sink."""

    node: SinkNode

    def __repr__(self) -> str:
        return output_line(self.node)

    def _repr_html_(self) -> str:
        return output_html(self.node)

    @overload
    def start(
        self,
        checkpoint: str | os.PathLike[str],
        *,
        on_event: OnEvent = (),
        dead_letters: Sink | None = None,
        dry_run: Literal[False] = False,
        **options: Unpack[Options],
    ) -> Query: ...
    @overload
    def start(
        self,
        checkpoint: str | os.PathLike[str],
        *,
        on_event: OnEvent = (),
        dead_letters: Sink | None = None,
        dry_run: Literal[True],
        **options: Unpack[Options],
    ) -> Plan: ...
    @renamed_argument("listeners", "on_event")
    @_showing_options
    def start(
        self,
        checkpoint: str | os.PathLike[str],
        *,
        on_event: OnEvent = (),
        dead_letters: Sink | None = None,
        dry_run: bool = False,
        **options: Unpack[Options],
    ) -> Query | Plan:
        """Starts a query with this output alone; see `start`.

        Raises: `PenstockError`.
        """
        if dry_run:
            return start(self, checkpoint=checkpoint, dead_letters=dead_letters, dry_run=True, **options)
        return start(self, checkpoint=checkpoint, on_event=on_event, dead_letters=dead_letters, **options)


@overload
def start(
    *outputs: Output,
    checkpoint: str | os.PathLike[str],
    on_event: OnEvent = (),
    dead_letters: Sink | None = None,
    dry_run: Literal[False] = False,
    **options: Unpack[Options],
) -> Query: ...
@overload
def start(
    *outputs: Output,
    checkpoint: str | os.PathLike[str],
    on_event: OnEvent = (),
    dead_letters: Sink | None = None,
    dry_run: Literal[True],
    **options: Unpack[Options],
) -> Plan: ...
@plain_errors
@renamed_argument("listeners", "on_event")
@_showing_options
def start(
    *outputs: Output,
    checkpoint: str | os.PathLike[str],
    on_event: OnEvent = (),
    dead_letters: Sink | None = None,
    dry_run: bool = False,
    **options: Unpack[Options],
) -> Query | Plan:
    """Starts one query with one or several outputs.

    `on_event` is a function, or several, that get every event of the query (`penstock.events`). Records that fail in an
    operator with ``on_error="dead_letter"`` go to the sink `dead_letters`. With `dry_run` nothing is started: the
    answer tells what would become of each part of the checkpoint.

    Raises: `PenstockError`; `ConfigError` for an option that does not exist, or a value that cannot be.
    """
    from penstock.engine.dryrun import plan_start
    from penstock.engine.history import listeners_of

    config = Config.of(checkpoint, **options)
    pipeline = compile_pipeline([output.node for output in outputs], dead_letters)
    from penstock.spark.launch import launch, naming_of

    if dry_run:
        return plan_start(pipeline, config, naming=naming_of(pipeline))

    return launch(pipeline, config, listeners_of(on_event))
