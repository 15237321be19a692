"""User code over several inputs: keyed ones with a common state, broadcast ones that all subtasks see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

import pyarrow as pa

from penstock.operators.base import Operator, OperatorContext
from penstock.operators.columns import describe, key_schema, refuse_doubles
from penstock.operators.failures.careful import CarefulSpec
from penstock.operators.failures.careful_operator import careful
from penstock.operators.process.broadcast_state import map_schema
from penstock.operators.process.connect_operator import ConnectOperator
from penstock.operators.process.declare import Declaration, Method, Resolve
from penstock.operators.process.process import RowOutput
from penstock.operators.process.process_operator import CodeShape
from penstock.operators.process.timers import TIMER_TABLES, TimerRules, Timers
from penstock.operators.process.user_state import StateField
from penstock.records import StateSchema


class ConnectProcess:
    """User code over several inputs. `inputs` names them: first the stream `connect` was called on, then the others.

    Rows of keyed inputs come to `process`, key by key, with the key's state. Rows of broadcast inputs come to
    `process_broadcast` in every subtask and fill broadcast maps, which `process` sees as attributes of `state`::

        class InEuro(pen.ConnectProcess):
            inputs = ("orders", "rates")
            output = "user bigint, euro double"
            rate = pen.broadcast_map("string", "double")

            def process(self, port, key, rows, state, out):
                for row in rows:
                    out.emit(user=key["user"], euro=row["amount"] * state.rate.get(row["currency"], 1.0))

            def process_broadcast(self, port, rows, broadcast):
                for row in rows:
                    broadcast.rate[row["currency"]] = row["rate"]

    Broadcast rows of an epoch come before its keyed rows. What `process_broadcast` does to the maps must follow from
    the rows alone, since every subtask does it for itself. `port` is the name of the input. Without keys `key` is empty
    and there is no state per key. Side outputs and timers are those of `KeyedProcess`.
    """

    inputs: ClassVar[Sequence[str]]
    output: ClassVar[str | pa.Schema | Any]
    sides: ClassVar[Mapping[str, str | pa.Schema | Any]] = MappingProxyType({})

    def open(self) -> None:
        """Called once before the first rows, in every subtask and again after every failure."""

    def process(self, *args: Any, **kwargs: Any) -> None:
        """``process(self, port, key, rows, state, out[, timers])``: handles rows of one key from one input."""
        raise NotImplementedError

    def process_broadcast(self, port: str, rows: list[dict[str, Any]], broadcast: Any) -> None:
        """Handles rows of a broadcast input."""
        raise NotImplementedError

    def on_timer(self, key: dict[str, Any], time: datetime, state: Any, out: RowOutput, timers: Timers) -> None:
        """Called when a timer of a key is due; as in `KeyedProcess`."""
        raise NotImplementedError


_PROCESS = Method("process", (6, 7), "process(self, port, key, rows, state, out)")
_PROCESS_TIMED = Method("process", (7,), "process(self, port, key, rows, state, out, timers)")
_ON_TIMER = Method("on_timer", (6,), "on_timer(self, key, time, state, out, timers)")
_BROADCAST = Method("process_broadcast", (4,), "process_broadcast(self, port, rows, broadcast)")


@dataclass(frozen=True, slots=True)
class ConnectInput:
    """One input, as the stream it comes from has it."""

    schema: pa.Schema
    keys: tuple[str, ...] = ()
    broadcast: bool = False


@dataclass(frozen=True)
class Connect(CarefulSpec):
    """A `ConnectProcess` with its types resolved; use `declare` to make one."""

    name: str
    inputs: tuple[ConnectInput, ...]
    input_names: tuple[str, ...]
    hold_back: frozenset[str]
    function: ConnectProcess | type[ConnectProcess]
    output_schema: pa.Schema
    maps: Mapping[str, StateSchema]
    fields: tuple[StateField, ...] = ()
    sides: Mapping[str, pa.Schema] = field(default_factory=dict)
    takes_timers: bool = False
    timed: bool = False

    @classmethod
    def declare(
        cls,
        name: str,
        inputs: tuple[ConnectInput, ...],
        function: ConnectProcess | type[ConnectProcess],
        *,
        hold_back: Sequence[str] = (),
        resolve: Resolve,
    ) -> Connect:
        """Checks the user's class against the inputs.

        Raises: `PipelineError`.
        """
        methods = (_PROCESS, _BROADCAST) if any(part.broadcast for part in inputs) else (_PROCESS,)
        declared = Declaration.of(name, function, ConnectProcess, methods, resolve)
        timed = declared.has("on_timer")
        if timed:
            Declaration.of(name, function, ConnectProcess, (_PROCESS_TIMED, _ON_TIMER), resolve)
        maps = {part: map_schema(*types) for part, types in declared.broadcast_maps().items()}
        output_schema, fields = declared.output(), declared.fields(beside=(*inputs[0].keys, *maps))
        names = _input_names(declared, inputs)
        refuse_doubles(name, names, "an input")
        _check_inputs(declared, inputs, names, maps, hold_back, stateful=timed or bool(fields))
        if timed:
            refuse_doubles(name, (*TIMER_TABLES, *maps), "a table of state")
        return cls(
            name,
            inputs,
            names,
            frozenset(hold_back),
            function,
            output_schema,
            maps,
            fields,
            declared.sides(),
            takes_timers=declared.takes("process", 7),
            timed=timed,
        )

    @property
    def kind(self) -> str:
        return "connect"

    @property
    def output_keys(self) -> tuple[str, ...]:
        return self.inputs[0].keys

    @cached_property
    def shape(self) -> CodeShape:
        keys = key_schema(self.name, self.inputs[0].schema, self.output_keys)
        rules = TimerRules(self.timed, self.watermarks)
        return CodeShape(self.name, keys, self.fields, self.output_schema, self.sides, rules)

    @property
    def state_tables(self) -> Mapping[str, StateSchema]:
        own = self.shape.tables() if self.output_keys else {}
        return {**own, **self.maps}

    @property
    def side_outputs(self) -> Mapping[str, pa.Schema]:
        return {**self.sides, **super().side_outputs}

    @property
    def emits_at_end(self) -> bool:
        return self.timed

    @property
    def broadcast_tables(self) -> frozenset[str]:
        return frozenset(self.maps)

    @property
    def port_ranks(self) -> tuple[int, ...]:
        return tuple(
            0 if part.broadcast else 2 if name in self.hold_back else 1
            for name, part in zip(self.input_names, self.inputs, strict=True)
        )

    def build(self, context: OperatorContext) -> Operator:
        # Every subtask gets every broadcast row; one of them tells about those that fail.
        ports = frozenset(port for port, part in enumerate(self.inputs) if part.broadcast and context.subtask)
        return careful(ConnectOperator(self, context), self.letters(self.name, context), told_elsewhere=ports)


def _input_names(declared: Declaration, inputs: Sequence[ConnectInput]) -> tuple[str, ...]:
    names = getattr(declared.kind, "inputs", None)
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        declared.refuse(
            f"{declared.kind.__name__} does not name its inputs (inputs is {names!r:.100})",
            'declare inputs = ("orders", "rates") in the class body, in the order of connect',
        )
    if len(names) != len(inputs):
        declared.refuse(
            f"{declared.kind.__name__}.inputs names {len(names)} inputs, connect got {len(inputs)}",
            "name the stream connect is called on, then the others, in their order",
        )
    return tuple(names)


def _check_inputs(
    declared: Declaration,
    inputs: Sequence[ConnectInput],
    names: Sequence[str],
    maps: Mapping[str, StateSchema],
    hold_back: Sequence[str],
    *,
    stateful: bool,
) -> None:
    keyed = {name: part for name, part in zip(names, inputs, strict=True) if not part.broadcast}
    wanted = key_schema(declared.operator, inputs[0].schema, inputs[0].keys).types if inputs[0].keys else []
    for name, part in keyed.items():
        found = [part.schema.field(key).type for key in part.keys]
        if found != wanted:
            columns = describe(pa.schema([part.schema.field(key) for key in part.keys]))
            declared.refuse(
                f"the key of {name!r} is {columns}, that of {names[0]!r} has {wanted}", "use the same types"
            )
    if stateful and not inputs[0].keys:
        declared.refuse("state or timers without a key", "call key_by before connect, or use broadcast maps alone")
    if maps and len(keyed) == len(inputs):
        declared.refuse(f"broadcast maps {', '.join(maps)} without a broadcast input", "connect a stream.broadcast()")
    if unknown := [name for name in hold_back if name not in keyed]:
        declared.refuse(f"hold_back names {', '.join(unknown)}", f"name inputs with keys: {', '.join(keyed)}")
    if len(set(hold_back)) == len(keyed):
        declared.refuse("hold_back names all inputs", "leave the one out that is read first")
