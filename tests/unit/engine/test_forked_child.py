"""A child that a driver forks while a query runs leaves the query alone, ends at once, and waits for nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys, threading
import penstock
import pyarrow as pa
from penstock.testing.inline import InlineRun, stream_of
from penstock.testing.tables import Memory

entered, go_on = threading.Event(), threading.Event()

def wait(batch):
    entered.set()
    go_on.wait(30)
    return batch

schema = pa.schema([("n", pa.int64())])
data = [{"source": pa.table({"n": list(range(10))}, schema=schema)}]
output = stream_of(schema).map_batches(wait, schema).write(Memory("t"))
query = InlineRun(data, clock=lambda: 0.0).start(output, checkpoint=sys.argv[1])
assert entered.wait(30)
child = os.fork()
if child == 0:
    {in_child}
    sys.exit(7)  # as any program ends: with its exit handlers
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
assert query.is_active
go_on.set()
assert query.await_termination(30)
print("done")
"""


def run(in_child: str, checkpoint: Path) -> list[str]:
    """What a program printed whose child did something with the query."""
    program = PROGRAM.replace("{in_child}", in_child)
    ended = subprocess.run(
        [sys.executable, "-c", program, str(checkpoint)], capture_output=True, text=True, timeout=90, check=False
    )
    assert ended.stdout.endswith("done\n"), ended.stderr
    return ended.stdout.splitlines()


def test_a_forked_child_ends_at_once_and_the_query_goes_on(tmp_path: Path) -> None:
    assert run("pass", tmp_path / "c") == ["done"]


CALL = """
    try:
        query.{call}
    except penstock.PenstockError as error:
        print(error, flush=True)
"""


@pytest.mark.parametrize(
    "call", ["stop()", "stop(drain=True)", "await_termination()", "rescale(3)", "savepoint('elsewhere')"]
)
def test_a_forked_child_is_told_that_the_query_is_not_its_own(tmp_path: Path, call: str) -> None:
    """It would wait for threads that it does not have, or for a lock that one of them held."""
    said = run(CALL.strip().replace("{call}", call), tmp_path / "c")
    assert said[0].startswith("[PEN-025]"), said
    assert f"{call.partition('(')[0]}() was called in process " in said[0]
    assert said[-1] == "done"
