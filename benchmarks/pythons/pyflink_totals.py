"""Running count and sum per key in PyFlink: two subtasks, checkpoints every second, a state cache that holds all keys.

Subtasks write down when they saw their first and their last row; the program prints that at its end.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
from pyflink.common import Configuration, Types
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.functions import KeyedProcessFunction
from pyflink.datastream.state import ValueStateDescriptor

FOLDER, KEPT = Path(os.environ["TOTALS_FOLDER"]), Path(os.environ["TOTALS_KEPT"])


class Totals(KeyedProcessFunction):
    def __init__(self, times: str) -> None:
        self._times = times

    def open(self, runtime_context):
        self._first = self._last = 0.0
        self._rows = 0
        pair = Types.TUPLE([Types.LONG(), Types.LONG()])
        self._totals = runtime_context.get_state(ValueStateDescriptor("totals", pair))

    def process_element(self, value, ctx):
        if self._rows == 0:
            self._first = time.time()
        self._rows += 1
        count, total = self._totals.value() or (0, 0)
        count, total = count + 1, total + value[1]
        self._totals.update((count, total))
        yield value[0], count, total

    def close(self):
        if self._rows:
            Path(f"{self._times}/{os.getpid()}-{id(self)}").write_text(f"{self._first} {time.time()} {self._rows}")


def main() -> None:
    times = KEPT / "times"
    times.mkdir()
    settings = Configuration()
    settings.set_string("execution.checkpointing.dir", (KEPT / "checkpoints").as_uri())
    settings.set_string("python.state.cache-size", "200000")
    settings.set_string("python.fn-execution.bundle.size", "100000")
    settings.set_string("taskmanager.memory.managed.size", "1g")
    environment = StreamExecutionEnvironment.get_execution_environment(settings)
    environment.set_python_executable(sys.executable)
    environment.set_parallelism(2)
    environment.enable_checkpointing(1_000)
    table = pq.ParquetDataset(sorted(map(str, FOLDER.glob("*.parquet")))).read()
    rows = list(zip(table["key"].to_pylist(), table["amount"].to_pylist(), strict=True))
    stream = environment.from_collection(rows, Types.TUPLE([Types.LONG(), Types.LONG()]))
    totals = stream.key_by(lambda row: row[0], Types.LONG()).process(
        Totals(str(times)), Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG()])
    )
    totals.filter(lambda row: row[1] < 0).print()
    environment.execute("totals")
    seen = [file.read_text().split() for file in times.iterdir()]
    assert sum(int(count) for _, _, count in seen) == len(rows)
    for first, last, _ in seen:
        print(f"first {first}\nlast {last}", flush=True)


if __name__ == "__main__":
    main()
