"""Operators that bring several streams together, as nodes of a pipeline: `connect` and `join`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from penstock.api.checks import check_outputs
from penstock.api.everything import behind_key
from penstock.errors import PipelineError
from penstock.graph.nodes import Input, Node, OperatorNode, SideNode, event_time_of, is_timed, schema_of
from penstock.operators.failures.careful import OnError
from penstock.operators.join.join import How, Join, JoinSide
from penstock.operators.process.connect import Connect, ConnectInput, ConnectProcess
from penstock.units import Duration, parse_duration, parse_signed_duration


def connected(
    inputs: tuple[Input, ...],
    process: ConnectProcess | type[ConnectProcess],
    name: str | None,
    hold_back: Sequence[str] = (),
    on_error: OnError = "stop",
) -> OperatorNode:
    """Raises: `PipelineError`."""
    from penstock.spark.schemas import arrow_type

    if isinstance(hold_back, str):
        raise PipelineError(
            f"hold_back={hold_back!r}", cause="it takes several names", next_step=f'write hold_back=("{hold_back}",)'
        )
    parts = tuple(ConnectInput(schema_of(part.node), part.keys, part.broadcast) for part in inputs)
    spec = Connect.declare(name or "connect", parts, process, hold_back=hold_back, resolve=arrow_type)
    spec = replace(spec, watermarks=any(is_timed(part.node) for part in inputs), on_error=on_error)
    check_outputs(spec)
    return OperatorNode(spec, name is not None, inputs)


def require_streams(method: str, others: Sequence[object], *kinds: type) -> None:
    """Raises: `PipelineError` if one of the arguments is not the kind of stream that the method takes."""
    forms = {"Stream": "a stream", "KeyedStream": "a stream with a key", "BroadcastStream": "a broadcast stream"}
    examples = {"Stream": "other", "KeyedStream": 'other.key_by("user")', "BroadcastStream": "other.broadcast()"}
    for other in others:
        if not isinstance(other, kinds):
            raise PipelineError(
                f"{method}() got {type(other).__name__} {other!r:.100}",
                cause=f"each argument of {method} is {' or '.join(forms[kind.__name__] for kind in kinds)}",
                next_step=f"write {method}({examples[kinds[0].__name__]}, …), not a list"
                if isinstance(other, list | tuple)
                else f"write {method}({examples[kinds[0].__name__]}, …)",
            )


def joined(
    left: Input,
    right: Input,
    *,
    within: Duration | Sequence[Duration],
    how: How,
    suffixes: Sequence[str],
    event_time: str | None,
    name: str | None,
) -> OperatorNode:
    """Raises: `PipelineError`, `ConfigError`."""
    label = name or "join"
    lower, upper = _interval(within, label)
    sides = [
        JoinSide(schema_of(part.node), part.keys, require_event_time(part.node, f"{label}: the {which} input"))
        for which, part in (("left", left), ("right", right))
    ]
    spec = Join.declare(label, *sides, lower=lower, upper=upper, how=how, suffixes=suffixes, event_time=event_time)
    check_outputs(spec)
    return OperatorNode(spec, name is not None, (left, right))


def require_event_time(node: Node, who: str) -> str:
    """The column with a stream's event time. Raises: `PipelineError` if it has none."""
    name = event_time_of(node)
    if name is None or not is_timed(node):
        raise PipelineError(
            f"{who} needs event time, which this stream does not have",
            cause="its source has none, or a step before dropped or changed the column",
            next_step='name it at the source, pen.read(frame, event_time="ts", watermark="10 s"), and keep it',
        )
    return name


def micros(duration: Duration, option: str) -> int:
    """Microseconds. Raises: `ConfigError`."""
    return round(parse_duration(duration, option) * 1e6)


def _interval(within: Duration | Sequence[Duration], label: str) -> tuple[int, int]:
    """Both ends in microseconds, negative ones before."""
    if isinstance(within, str | int | float | timedelta):
        return -micros(within, "within"), micros(within, "within")
    if not isinstance(within, tuple | list) or len(within) != 2:
        raise PipelineError(
            f"{label}: within={within!r:.100}",
            cause="an interval has two ends",
            next_step='write within=("-5 min", "1 h"), or one duration for both directions',
        )
    lower, upper = (round(parse_signed_duration(end, "within") * 1e6) for end in within)
    return lower, upper


def side_node(node: Node, output: str) -> SideNode:
    """Raises: `PipelineError`."""
    operator = behind_key(node.operator if isinstance(node, SideNode) else node)
    known = operator.spec.side_outputs if isinstance(operator, OperatorNode) else {}
    if not isinstance(operator, OperatorNode) or output not in known:
        raise PipelineError(
            f"there is no side output {output!r}; there is {', '.join(known) or 'none'}",
            cause="a typo, or the stream was transformed since the operator that has it",
            next_step="call side() directly on the operator's output",
        )
    return SideNode(operator, output)
