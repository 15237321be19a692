"""A child that a driver forks while a query runs ends at once, and leaves the query alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, signal, sys, threading
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
output = stream_of(schema).map_batches(wait).write(Memory("t"))
query = InlineRun(data, clock=lambda: 0.0).start(output, checkpoint=sys.argv[1])
assert entered.wait(30)
child = os.fork()
if child == 0:
    sys.exit(7)  # as any program ends: with its exit handlers
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
assert query.is_active
go_on.set()
assert query.await_termination(30)
print("done")
"""


def test_a_forked_child_ends_at_once_and_the_query_goes_on(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "c")], capture_output=True, text=True, timeout=90, check=False
    )
    assert ended.stdout.split() == ["done"], ended.stderr
