"""The ends of streams, and the start of a query over them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.engine.options import Config
from penstock.graph.compiler import compile_pipeline
from penstock.graph.nodes import SinkNode
from penstock.sinks.base import Sink

if TYPE_CHECKING:
    import os

    from penstock.engine.history import Listener
    from penstock.engine.query import Query


@dataclass(frozen=True, slots=True)
class Output:
    """A stream that ends in a sink."""

    node: SinkNode

    def start(
        self,
        checkpoint: str | os.PathLike[str],
        *,
        listeners: tuple[Listener, ...] = (),
        dead_letters: Sink | None = None,
        **options: object,
    ) -> Query:
        """Starts the query; see `Config` for the options, `start` for the rest.

        Raises: `PenstockError`.
        """
        return start(self, checkpoint=checkpoint, listeners=listeners, dead_letters=dead_letters, **options)


def start(
    *outputs: Output,
    checkpoint: str | os.PathLike[str],
    listeners: tuple[Listener, ...] = (),
    dead_letters: Sink | None = None,
    **options: object,
) -> Query:
    """Starts one query with one or several outputs. Records that fail in an operator with ``on_error="dead_letter"`` go
    to the sink `dead_letters`.

    Raises: `PenstockError`.
    """
    from penstock.spark.launch import launch

    config = Config.of(checkpoint, **options)
    return launch(compile_pipeline([output.node for output in outputs], dead_letters), config, listeners)
