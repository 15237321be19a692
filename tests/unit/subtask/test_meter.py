"""What a step took besides what its rows needed (A4)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from penstock.subtask.meter import Effort, Meter, ThreadMeter


def test_efforts_add_up_and_the_clock_alone_tells_nothing_of_the_cpu() -> None:
    moments = iter([1.0, 4.0])
    meter = Meter(lambda: next(moments))
    before = meter.read()
    assert meter.read() - before == Effort(3.0, None, 0.0)
    assert Effort(1.0, None) + Effort(2.0, 0.5, 0.25) + Effort(1.0, 0.5) == Effort(4.0, 1.0, 0.25)


def test_a_step_was_never_delayed_for_longer_than_it_took() -> None:
    """Clocks of the kernel and of Python are not read at the same moment."""
    assert (Effort(1.1, 0.0, 5.3) - Effort(1.0, 0.0, 5.0)).delayed_s == pytest.approx(0.1)


def test_computing_is_cpu_time_and_waiting_is_not() -> None:
    with ThreadMeter(time.monotonic) as meter:
        before = meter.read()
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        computed = meter.read() - before
    assert computed.cpu_s is not None
    assert computed.cpu_s >= 0.02
    assert computed.wall_s >= computed.cpu_s - 0.001


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="only Linux counts it")
def test_the_kernel_counts_how_long_a_thread_waits_for_a_core() -> None:
    """The file of the kernel is read as it is written today: the second number is the wait."""
    with ThreadMeter(time.monotonic) as meter:
        fields = Path("/proc/thread-self/schedstat").read_text().split()
        assert len(fields) == 3
        assert meter.read().delayed_s >= int(fields[1]) / 1e9


def test_a_closed_meter_holds_no_file() -> None:
    meter = ThreadMeter(time.monotonic)
    with meter:
        pass
    assert meter.read().delayed_s == 0.0
