"""Workers keep memory between tasks."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from penstock.spark.quirks.memory import keep_memory

if sys.argv[1] == "kept":
    keep_memory()
    keep_memory()

def task():
    arrays = [np.ones(1 << 18) for _ in range(8)]  # 16 MB

task()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    task()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries stay as they are")
def test_the_arrays_of_a_task_use_the_memory_of_the_task_before() -> None:
    assert page_faults("kept") < 0.1 * page_faults("not kept")
