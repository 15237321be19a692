"""What `penstock doctor` finds, and that it leaves nothing behind."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.cli.doctor import examine
from penstock.cli.findings import executor_findings, package_findings, python_finding, store_findings
from penstock.spark.checkup import Machine, driver
from penstock.store import MemoryStore, open_store

HERE = driver()


def executor(**changes: object) -> Machine:
    return dataclasses.replace(
        HERE, **{"host": "node-7", "clock_s": 100.0, "asked_s": 99.0, "answered_s": 101.0, **changes}
    )


def test_a_machine_like_the_driver_is_well() -> None:
    assert [finding.state for finding in executor_findings(HERE, [executor()])] == ["ok"]


def test_a_package_that_an_executor_lacks_is_named_with_the_driver_s_version() -> None:
    packages = {**HERE.packages, "penstock": None}
    (finding,) = executor_findings(HERE, [executor(packages=packages)])
    assert (finding.what, finding.state) == ("executor node-7", "bad")
    assert "no package penstock" in finding.seen
    assert f"pip install penstock=={HERE.packages['penstock']}" in finding.next_step


def test_another_version_of_pyarrow_on_an_executor_is_told() -> None:
    (finding,) = executor_findings(HERE, [executor(packages={**HERE.packages, "pyarrow": "18.1.0"})])
    assert "pyarrow 18.1.0" in finding.seen


def test_another_python_on_an_executor_is_told() -> None:
    (finding,) = executor_findings(HERE, [executor(python="3.9.2")])
    assert "PYSPARK_PYTHON" in finding.next_step


@pytest.mark.parametrize(("clock_s", "states"), [(99.5, ["ok"]), (97.0, ["bad"]), (105.0, ["bad"])])
def test_a_clock_is_wrong_only_if_no_moment_of_the_job_explains_it(clock_s: float, states: list[str]) -> None:
    assert [finding.state for finding in executor_findings(HERE, [executor(clock_s=clock_s)])] == states


def test_storage_that_an_executor_cannot_read_is_told() -> None:
    (finding,) = executor_findings(HERE, [executor(store="MissingFile: doctor/1 does not exist")])
    assert "cannot read the checkpoint's storage" in finding.seen


@pytest.mark.parametrize(
    ("version", "state"), [("3.11.9", "ok"), ("3.13.0", "ok"), ("3.10.1", "bad"), ("3.14.0", "bad")]
)
def test_pythons_of_the_window_are_well(version: str, state: str) -> None:
    assert python_finding(version).state == state


def test_a_pyarrow_that_is_too_new_is_told_with_the_command() -> None:
    (finding,) = package_findings(dataclasses.replace(HERE, packages={**HERE.packages, "pyarrow": "21.0.0"}))
    assert finding.next_step == "pip install 'pyarrow>=18,<20,!=19.0.0'"


class Forgetful(MemoryStore):
    """A storage whose create overwrites, as a plain put of an object store does."""

    def create(self, path: str, data: bytes) -> None:
        self.delete([path])
        super().create(path, data)


def test_storage_without_create_if_absent_is_refused() -> None:
    (finding,) = store_findings(Forgetful("memory://forgetful"), is_local=False, cluster=False)
    assert finding.state == "bad"
    assert "a second create of one name succeeded" in finding.seen


def test_a_local_folder_under_a_cluster_is_doubted(tmp_path: Path) -> None:
    found = store_findings(open_store(str(tmp_path)), is_local=True, cluster=True)
    assert [finding.state for finding in found] == ["ok", "unknown"]


def test_the_folder_is_as_it_was_before(tmp_path: Path) -> None:
    findings = examine(str(tmp_path / "new" / "checkpoint"), None, (), spark=False)
    assert [finding.what for finding in findings] == ["Python", "PySpark", "Java", "packages", "checkpoint storage"]
    assert all(finding.state == "ok" for finding in findings)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_a_finding_and_an_exit_code(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("taken")
    told = CliRunner().invoke(main, ["doctor", "--no-spark", "--json", "--checkpoint", str(tmp_path / "file")])
    assert told.exit_code == 1
    assert [one["state"] for one in json.loads(told.stdout)][-1] == "bad"
