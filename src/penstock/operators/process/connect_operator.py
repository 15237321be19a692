"""Runs user code over several inputs: keyed rows, unkeyed rows, and broadcast rows that change maps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.operators.base import OperatorContext, OperatorDefaults
from penstock.operators.failures.failing import batch_failed
from penstock.operators.process.broadcast_state import BroadcastView, SharedMap
from penstock.operators.process.process_operator import Call, KeyedCode, opened, without_timers
from penstock.operators.process.timers import TimerRules, Timers
from penstock.operators.process.user_output import Misfit, RowCollector
from penstock.operators.process.user_state import StateView
from penstock.operators.values.convert import all_rows
from penstock.records import Due, Emitted, Records, Time

if TYPE_CHECKING:
    from penstock.operators.process.connect import Connect


class ConnectOperator(OperatorDefaults):
    """One subtask attempt's instance of a `ConnectProcess`."""

    def __init__(self, spec: Connect, context: OperatorContext) -> None:
        self._spec = spec
        self._maps = {name: SharedMap(name, schema, context.states[name]) for name, schema in spec.maps.items()}
        function = opened(spec.name, spec.function)
        calls = [partial(function.process, name) for name in spec.input_names]
        self._calls: list[Call] = list(calls) if spec.takes_timers else [without_timers(call) for call in calls]
        self._broadcast_calls = [partial(function.process_broadcast, name) for name in spec.input_names]
        if spec.output_keys:
            self._keyed = KeyedCode(spec.shape, context, function.on_timer if spec.timed else None, shared=self._maps)
        self._view: type[StateView] = type("State", (StateView,), {"__slots__": (), **self._maps})

    def process(self, records: Records) -> Iterator[Emitted]:
        if not records.rows:
            return iter(())
        part = self._spec.inputs[records.port]
        with self._failures_of_maps():
            if part.broadcast:
                self._take_broadcast(records)
                return iter(())
            if part.keys:
                return self._keyed.run(self._calls[records.port], records, part.keys)
            return self._run_unkeyed(records)

    def finish(self) -> Iterator[Emitted]:
        return self._keyed.finish() if self._spec.output_keys else iter(())

    def advance(self, time: Time) -> Iterator[Emitted]:
        fired = self._keyed.advance(time)
        while True:
            with self._failures_of_maps():
                emitted = next(fired, None)
            if emitted is None:
                return
            yield emitted

    def next_due(self) -> Due:
        return self._keyed.next_due()

    @contextmanager
    def _failures_of_maps(self) -> Iterator[None]:
        """If a map could not be read, the attempt fails with that error, even if user code caught it."""
        try:
            yield
        finally:
            for shared in self._maps.values():
                if shared.failure is not None:
                    raise shared.failure

    def _take_broadcast(self, records: Records) -> None:
        """The rows of the slice change the maps all together, or not at all."""

        def call(batch: pa.RecordBatch) -> BroadcastView:
            view = BroadcastView(self._maps)
            self._broadcast_calls[records.port](all_rows(batch), view)
            return view

        try:
            for name, changes in call(records.batch).changes().items():
                self._maps[name].changed(changes)
        except Exception as error:
            raise batch_failed(self._spec.name, records.batch, call, error) from error

    def _run_unkeyed(self, records: Records) -> Iterator[Emitted]:
        def call(batch: pa.RecordBatch) -> list[Emitted]:
            out = RowCollector(self._spec.output_schema, self._spec.sides)
            timers = Timers(records.time, records.hashes, TimerRules())
            self._calls[records.port]({}, all_rows(batch), self._view(), out, timers)
            try:
                return list(out.emitted())
            except Misfit as misfit:
                raise misfit.error from misfit

        try:
            return iter(call(records.batch))
        except Exception as error:
            raise batch_failed(self._spec.name, records.batch, call, error) from error
