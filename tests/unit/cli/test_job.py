"""How commands find a program: the job file that `plan` and `rehearse` share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.job import job_of
from penstock.cli.main import main
from penstock.engine.checkpoints import Checkpoints
from penstock.errors import ConfigError
from penstock.protocol.manifest import SinkState
from penstock.store import LocalStore
from tests.support.engine_jobs import FakeClock, with_rows_in_flight

JOB = """
import pyarrow as pa

import penstock as pen
from penstock.testing import stream_of

SCHEMA = pa.schema({"user": pa.int64(), "number": pa.int64()})


class Slow(pen.KeyedProcess):
    output = SCHEMA
    seen = pen.value_state(pa.int64())

    def process(self, key, rows, state, out):
        out.emit_many(rows)


def output(name="slow", **more):
    rows = stream_of(SCHEMA).map_batches(lambda batch: batch, name="parse", **more)
    return rows.key_by("user").process(Slow, name=name).write(pen.Discard(), name="memory")


def one():
    return output()


def several():
    return [output()]


def with_arguments():
    return {"outputs": output(on_error="dead_letter"), "dead_letters": pen.Discard(), "checkpoint": "not here"}


def other_name():
    return output("other")


def nothing():
    return 42
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return path


@pytest.mark.parametrize("function", ["one", "several", "with_arguments"])
def test_a_job_is_an_output_a_list_or_a_dictionary_of_arguments(job: Path, function: str) -> None:
    found = job_of(f"{job}:{function}")
    assert len(found.outputs) == 1
    assert set(found.with_options({"retain": 2})) - {"dead_letters"} == {"retain"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("job.py", "write it as FILE.py:FUNCTION"),
        ("nowhere.py:build", "there is no file"),
        ("job.py:missing", "has no function missing"),
        ("job.py:nothing", "nothing returned int"),
    ],
)
def test_what_is_not_a_job_is_told(job: Path, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match="is not a job") as caught:
        job_of(str(job.parent / name))
    assert message in str(caught.value)


def test_a_plan_takes_the_arguments_of_the_job_and_those_of_the_command(
    job: Path, tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """F2: exit code 0 where the query would start, 2 where it would not; nothing is changed by either."""
    with_rows_in_flight(tmp_path / "here", clock, table)
    here = ["--checkpoint", str(tmp_path / "here"), "--json"]
    forget = ["--forget", next(iter(_sinks(tmp_path / "here")))]
    for function, more, code in (
        ("with_arguments", [], 0),
        ("other_name", [], 2),
        ("other_name", ["--renamed", "slow=other"], 0),
    ):
        told = CliRunner().invoke(main, ["plan", f"{job}:{function}", *here, *forget, *more])
        assert told.exit_code == code, told.output
        assert json.loads(told.output)["fits"] is (code == 0)
    fork = ["plan", f"{job}:one", "--checkpoint", str(tmp_path / "new"), "--restore", str(tmp_path / "here"), "--fork"]
    told = CliRunner().invoke(main, fork)
    assert told.exit_code == 0, told.output
    assert "stays with the original" in told.output
    assert "the other folder stays as it is" in told.output
    assert not (tmp_path / "new").exists()


def test_a_rehearsal_of_what_is_no_checkpoint_is_told_and_leaves_nothing(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.nice", lambda _: 0)
    told = CliRunner().invoke(main, ["rehearse", f"{job}:one", "--checkpoint", str(tmp_path / "nothing")])
    assert told.exit_code == 1
    assert "PEN-014" in told.output
    assert {path.name for path in tmp_path.iterdir()} <= {"job.py", "__pycache__"}


def _sinks(folder: Path) -> dict[str, SinkState]:
    newest = Checkpoints(LocalStore(folder)).newest()
    assert newest is not None
    return newest.sinks
