"""Rehearsals: what a changed program would do to a running query, without touching it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

from penstock.api.outputs import Output
from penstock.engine.options import Options
from penstock.graph.compiler import compile_pipeline
from penstock.records import DEAD_LETTERS
from penstock.sinks.base import Sink
from penstock.units import Duration, bad_value, parse_duration

if TYPE_CHECKING:
    from penstock.engine.rehearsal import Rehearsal


def rehearse(
    *outputs: Output,
    checkpoint: str | os.PathLike[str],
    epochs: int = 20,
    against: Output | Sequence[Output] | None = None,
    keys: Mapping[str, Sequence[str]] | None = None,
    timeout: Duration = "5 min",
    dead_letters: Sink | None = None,
    against_dead_letters: Sink | None = None,
    **options: Unpack[Options],
) -> Rehearsal:
    """Runs a program on a fork of a checkpoint and on the real source, into no table, and tells what it did.

    `checkpoint` is the folder of the original, which may run, or ``"folder@42"``. The rehearsal ends after `epochs`
    epochs, after `timeout`, or when the source has no more rows. It leaves nothing behind. Tables, commit listeners and
    the original are not touched; calls that your functions make are made.

    With `against`, the outputs of the old program, both programs get the same rows, and `keys` names by sink the
    columns by which their results are compared.

    `options` are those of `start` that a start of the changed program needs, such as `renamed`.

    Raises: `PenstockError` where the program cannot start on that checkpoint.
    """
    from penstock.engine.rehearse import Wanted
    from penstock.engine.rehearse import rehearse as run
    from penstock.spark.launch import launch

    if isinstance(epochs, bool) or epochs < 1:
        raise bad_value("epochs", epochs, "a whole number of at least 1")
    old = (against,) if isinstance(against, Output) else against
    wanted = Wanted(
        checkpoint=os.fspath(checkpoint),
        new=compile_pipeline([output.node for output in outputs], dead_letters),
        epochs=epochs,
        timeout_s=parse_duration(timeout, "timeout"),
        old=None if old is None else compile_pipeline([output.node for output in old], against_dead_letters),
        keys={
            sink: (columns,) if isinstance(columns, str) else tuple(columns) for sink, columns in (keys or {}).items()
        },
        options=dict(options),
        letters=frozenset({DEAD_LETTERS} if dead_letters is not None else ()),
    )
    return run(wanted, launch)
