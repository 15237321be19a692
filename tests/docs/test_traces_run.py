"""The traces of docs/internals/traces.md against a running query: each hop outside of Spark happens in its caller."""

from __future__ import annotations

import itertools
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.testing.inline import InlineRun, stream_of
from tests.docs.test_true_names import HOPS, TRACES, Hop, caller_of, tables_of
from tests.support.pages import text_of
from tests.unit.test_architecture import PACKAGE

Function = tuple[str, str]
SCHEMA = pa.schema([("user", pa.int64()), ("amount", pa.int64())])
BATCHES = [
    {"source": pa.table({"user": [n % 97 for n in range(1500)], "amount": [1] * 1500}, schema=SCHEMA)} for _ in range(3)
]


def runs_here(function: Function) -> bool:
    """Spark is not here, and an interface has no code that could run."""
    return not function[0].startswith("spark/") and function != ("engine/cluster.py", "Cluster.run")


class Recorder:
    """Which functions of the traces ran, and which of them stood above them in the stack."""

    def __init__(self) -> None:
        self.seen: dict[Function, set[Function]] = {}
        self._wanted = set(HOPS)
        self._names: dict[CodeType, Function | None] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (called := self._name(frame.f_code)) is not None:
            above, caller = self.seen.setdefault(called, set()), frame.f_back
            while caller is not None:
                if (name := self._name(caller.f_code)) is not None:
                    above.add(name)
                caller = caller.f_back

    def _name(self, code: CodeType) -> Function | None:
        if code not in self._names:
            file = Path(code.co_filename)
            module = file.relative_to(PACKAGE).as_posix() if file.is_relative_to(PACKAGE) else ""
            function = (module, code.co_qualname)
            self._names[code] = function if function in self._wanted else None
        return self._names[code]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[Function, set[Function]]:
    folder, recorder = tmp_path_factory.mktemp("traced"), Recorder()
    ticks = itertools.count()
    run = InlineRun(BATCHES, lambda: next(ticks) * 0.01)  # each look at the clock takes 10 ms, so the barrier fires
    totals = stream_of(SCHEMA).key_by("user").aggregate(total=pen.sum("amount"), name="totals")
    table = pen.Paimon(str(folder / "warehouse"), "shop.totals", primary_key=["user"])
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    try:
        query = run.start(totals.write(table), checkpoint=folder / "checkpoint", epoch="200 ms", parallelism=1)
        query.rescale({"totals": 3})
        query.await_termination(60)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return recorder.seen


TABLES = tables_of(text_of(TRACES))
STEPS = sorted(
    {
        ((hop.module, hop.function), None if caller is None else (caller.module, caller.function))
        for hops in TABLES
        for index, hop in enumerate(hops)
        for caller in [caller_of(hop, hops[:index]) if len(hop.number) > 1 else None]
        if runs_here((hop.module, hop.function))
    },
    key=str,
)


@pytest.mark.parametrize(("function", "caller"), STEPS, ids=[f"{step[0][1]} in {step[1]}" for step in STEPS])
def test_a_hop_of_the_traces_happens_inside_its_caller(
    seen: dict[Function, set[Function]], function: Function, caller: Function | None
) -> None:
    assert function in seen, "the query never came here"
    if caller is not None and runs_here(caller):
        assert caller in seen[function], f"called inside of {sorted(seen[function])} only"


def test_most_hops_are_outside_of_spark() -> None:
    assert len(STEPS) > 45
    assert isinstance(TABLES[0][0], Hop)
