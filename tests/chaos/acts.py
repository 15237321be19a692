"""The faults themselves. Each function does one to a run and says in a few words what came of it."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.chaos import messages, processes
from tests.chaos.corrupt import corrupt_file
from tests.chaos.schedule import What
from tests.chaos.verdict import Wrong, require_understandable

if TYPE_CHECKING:
    from tests.chaos.run import Run

FULL_S_MAX = 6.0
"""How long a disk stays full: a commit that fails is tried again for a while."""
FENCED = "PEN-020"
JOB_FAILED = "PEN-033"
NO_SPACE = {"PEN-031", "PEN-032", JOB_FAILED, "PEN-043"}


def kill_workers(run: Run, chance: random.Random) -> str:
    run.tolerated.add(JOB_FAILED)  # a task that was hit too often
    killed = 0
    for _ in range(chance.randint(1, 3)):
        workers = processes.workers(run.driver.pid)
        killed += bool(workers) and processes.send(chance.choice(workers), signal.SIGKILL)
        time.sleep(chance.uniform(0.0, 0.3))  # a random moment
    return f"{killed} killed"


def kill_executor(run: Run, chance: random.Random) -> str:
    run.tolerated.add(JOB_FAILED)  # there may be none left for a while
    executors = processes.executors(run.driver.pid)
    killed = bool(executors) and processes.send(chance.choice(executors), signal.SIGKILL)
    return f"1 of {len(executors)} killed" if killed else "there was none"


def kill_driver(run: Run, chance: random.Random) -> str:
    """As when its machine is gone: Python, JVM and workers at once."""
    run.driver.kill()
    return _another(run)


def kill_starting_driver(run: Run, chance: random.Random) -> str:
    run.stop()
    run.send_start()
    moment_s = chance.uniform(0.0, 1.2)
    time.sleep(moment_s)
    run.driver.kill()
    return f"after {moment_s:.1f} s, {_another(run)}"


def kill_jvm(run: Run, chance: random.Random) -> str:
    """The Python driver must notice, and say so."""
    run.ensure_runs()
    run.tolerated.add(JOB_FAILED)
    for jvm in processes.jvms(run.driver.pid):
        processes.send(jvm, signal.SIGKILL)
    outcome = run.await_end(run.driver)
    run.tolerate(outcome)
    return f"{outcome.code}, {_another(run)}"


def orphan_jvm(run: Run, chance: random.Random) -> str:
    """Only the Python driver is killed: its JVM and its workers may still be at work while the next driver starts."""
    processes.send(run.driver.pid, signal.SIGKILL)
    return _another(run)


def _another(run: Run) -> str:
    old = run.driver
    run.take_driver()
    run.ensure_runs()
    run.drivers.give_back(old)
    return "another one took over"


def pause_driver(run: Run, chance: random.Random) -> str:
    """Long enough that another driver takes over and publishes; then the first one goes on and must find out."""
    run.ensure_runs()
    old = run.driver
    jvms = processes.jvms(old.pid)
    parts = {
        "all of it": [process.pid for process in processes.of_session(old.pid)],
        "Python": [old.pid],
        "JVM": jvms,
        "Python and JVM": [old.pid, *jvms],
    }
    part = chance.choice(list(parts))
    for pid in parts[part]:
        processes.send(pid, signal.SIGSTOP)
    try:
        run.take_driver()
        run.ensure_runs()
        run.let_run(chance.randint(1, 2))
    finally:
        for pid in parts[part]:
            processes.send(pid, signal.SIGCONT)
    outcome = run.await_end(old)
    require_understandable(outcome)
    if outcome.code != FENCED:
        raise Wrong(f"a driver that was replaced does not say so: {outcome.message or 'it ended well'}")
    run.drivers.give_back(old)
    return f"{part}, {outcome.code}"


def fill_disk(run: Run, chance: random.Random) -> str:
    """With input to process: it must stop with a message about space, or get through."""
    disk = run.disk
    assert disk is not None
    if not disk.is_mounted:
        return "skipped, may not mount"
    run.ensure_runs()
    driver = run.driver
    run.feed()
    run.tolerated |= NO_SPACE  # what was tried again for a while may give up after there is space again
    with disk.full():
        driver.wait(lambda: driver.outcome is not None, FULL_S_MAX)
    outcome = driver.outcome
    if outcome is None:
        return f"{run.schedule.small}, got through"
    run.errors.append(outcome.message)
    require_understandable(outcome)
    if outcome.code not in NO_SPACE or not any(word in outcome.message for word in ("No space left", "disk is full")):
        raise Wrong(f"a full disk, and the message does not say so: {outcome.message}")
    run.ensure_runs(after=outcome)
    return f"{run.schedule.small}, {outcome.code}"


def jump_clock(run: Run, chance: random.Random) -> str:
    run.clock_s += chance.choice((-7200.0, -30.0, 30.0, 7200.0))
    run.driver.tell(messages.Jump(run.clock_s))
    return f"{run.clock_s:+.0f} s"


def burn_cpu(run: Run, chance: random.Random) -> str:
    burners = chance.randint(2, 4)
    run.burn(burners)
    return f"{burners} processes"


def cancel_jobs(run: Run, chance: random.Random) -> str:
    run.tolerated.add(JOB_FAILED)
    times = chance.randint(1, 4)
    for _ in range(times):
        run.driver.tell(messages.CancelJobs())
        time.sleep(chance.uniform(0.0, 0.3))  # a random moment
    return f"{times} times"


def rescale(run: Run, chance: random.Random) -> str:
    parallelism = chance.randint(1, 7)
    run.driver.tell(messages.Rescale(run.of_stages(parallelism)))
    return f"to {parallelism}"


def restart(run: Run, chance: random.Random) -> str:
    run.stop()
    run.ensure_runs()
    return "at another parallelism"


ACTS: dict[What, Callable[[Run, random.Random], str]] = {
    "kill workers": kill_workers,
    "kill executor": kill_executor,
    "kill driver": kill_driver,
    "kill starting driver": kill_starting_driver,
    "kill jvm": kill_jvm,
    "orphan jvm": orphan_jvm,
    "pause driver": pause_driver,
    "fill disk": fill_disk,
    "corrupt file": corrupt_file,
    "jump clock": jump_clock,
    "burn cpu": burn_cpu,
    "cancel jobs": cancel_jobs,
    "rescale": rescale,
    "restart": restart,
}
