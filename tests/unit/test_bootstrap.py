"""What `make` does on machines that lack something: played with a PATH that holds only what the test puts there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bootstrap.sh"
TOOLS = ("sh", "cat", "env", "grep", "head", "ln", "sed")
JAVA = """case $1 in --list-modules) echo "%s@17" ;; *) echo 'openjdk version "%s"' >&2 ;; esac"""
SPARK_READY = JAVA % ("jdk.incubator.vector", "17.0.15")
TRIMMED = JAVA % ("java.base", "17.0.15")
JAVA_8 = JAVA % ("", "1.8.0_402")


class Machine:
    """A folder as the whole PATH, and the script run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.log = folder / "log"
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, tool
            (self.bin / tool).symlink_to(found)
        self.put("uname", "echo Linux")
        self.put("id", "echo 1000")

    def put(self, name: str, body: str, folder: Path | None = None) -> None:
        path = (folder or self.bin) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def put_python(self, name: str, version: str, *, venv: str = "yes") -> None:
        """A Python that answers the probe, and logs everything else it is asked."""
        self.put(name, f'[ "$1" = - ] && {{ cat >&-; echo "{version} {venv}"; exit; }}; echo "{name} $*" >> {self.log}')

    def put_apt(self, *, has: str) -> None:
        """apt that knows one package, and puts a Java that Spark can use on the PATH when asked to install it."""
        self.put("apt-cache", f'[ "$2" = {has} ]')
        self.put("java", SPARK_READY, folder=self.folder / "package")
        install = f"ln -s {self.folder}/package/java {self.bin}/java"
        self.put("apt-get", f'echo "$*" >> {self.log}; case $* in *install*) {install} ;; esac')

    def run(self, command: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.bin / "sh", SCRIPT, command],
            cwd=self.folder,
            env={"PATH": str(self.bin), **env},
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )

    @property
    def logged(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_java_that_spark_can_use_is_taken_without_a_word(machine: Machine) -> None:
    machine.put("java", SPARK_READY)
    done = machine.run("java")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_java_home_counts_before_the_path(machine: Machine) -> None:
    machine.put("java", SPARK_READY)
    machine.put("java", JAVA_8, folder=machine.folder / "old" / "bin")
    done = machine.run("java", JAVA_HOME=str(machine.folder / "old"))
    assert done.returncode == 1
    assert "is Java 8" in done.stderr
    assert "unset JAVA_HOME" in done.stderr


def test_without_java_and_without_rights_the_exact_command_is_shown(machine: Machine) -> None:
    machine.put_apt(has="openjdk-17-jre-headless")
    done = machine.run("java")
    assert done.returncode == 1
    assert "no Java that runs" in done.stderr
    assert "install" in done.stderr
    assert machine.logged == ""


@pytest.mark.parametrize("package", ["openjdk-17-jre-headless", "openjdk-21-jre-headless"])
def test_root_gets_java_from_apt(machine: Machine, package: str) -> None:
    machine.put("id", "echo 0")
    machine.put_apt(has=package)
    done = machine.run("java")
    assert done.returncode == 0, done.stderr
    assert machine.logged.splitlines() == ["-q update", f"-q install -y --no-install-recommends {package}"]


def test_sudo_without_password_gets_java_from_apt(machine: Machine) -> None:
    machine.put_apt(has="openjdk-17-jre-headless")
    machine.put("true", "exit 0")
    machine.put("sudo", '[ "$1" = -n ] && shift && exec "$@"')
    assert machine.run("java").returncode == 0
    assert "install" in machine.logged


def test_an_apt_that_has_no_java_ends_with_the_command(machine: Machine) -> None:
    machine.put("id", "echo 0")
    machine.put_apt(has="something-else")
    done = machine.run("java")
    assert done.returncode == 1
    assert "Then run make again." in done.stderr


def test_a_trimmed_java_is_refused_with_its_reason(machine: Machine) -> None:
    machine.put("java", TRIMMED)
    done = machine.run("java")
    assert done.returncode == 1
    assert "jdk.incubator.vector" in done.stderr


def test_on_a_mac_the_command_is_brews(machine: Machine) -> None:
    machine.put("uname", "echo Darwin")
    done = machine.run("java")
    assert "brew install openjdk@17" in done.stderr
    assert "export JAVA_HOME=" in done.stderr


def test_a_python_that_is_too_old_is_named_with_its_version(machine: Machine) -> None:
    machine.put_python("python3", "3.9")
    done = machine.run("venv")
    assert done.returncode == 1
    assert "needs Python 3.11, 3.12 or 3.13; found: python3 (3.9)" in done.stderr


def test_the_newest_suitable_python_makes_the_environment(machine: Machine) -> None:
    machine.put_python("python3", "3.11")
    machine.put_python("python3.12", "3.12")
    machine.put("python3.13", "echo 'not switched on' >&2; exit 127")
    machine.run("venv")
    assert "python3.12 -m venv --clear .venv" in machine.logged
    assert "python3 -m venv" not in machine.logged


def test_a_python_named_by_the_user_is_the_only_one_tried(machine: Machine) -> None:
    machine.put_python("python3.12", "3.12")
    machine.put_python("mine", "3.14")
    done = machine.run("venv", PYTHON="mine")
    assert done.returncode == 1
    assert "found: mine (3.14)" in done.stderr


def test_a_python_without_venv_says_which_package_brings_it(machine: Machine) -> None:
    machine.put_python("python3.11", "3.11", venv="no")
    done = machine.run("venv")
    assert done.returncode == 1
    assert "apt-get install -y python3.11-venv" in done.stderr


def test_the_script_has_no_bashisms() -> None:
    """The script must parse where sh is not bash; it is dash on Debian and ash on Alpine."""
    shell = shutil.which("dash") or "sh"
    subprocess.run([shell, "-n", SCRIPT], check=True, env={"PATH": os.defpath}, stdout=sys.stderr)
