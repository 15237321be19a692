"""Java Paimon as a process that answers one command at a time. Its jars come from Maven Central when first used."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

JARS = (
    "org.apache.paimon:paimon-flink-2.0:2.0.0",
    "org.apache.hadoop:hadoop-client-api:3.3.6",
    "org.apache.hadoop:hadoop-client-runtime:3.3.6",
    "org.slf4j:slf4j-api:1.7.36",
    "org.slf4j:slf4j-nop:1.7.36",
    "commons-logging:commons-logging:1.2",
)
SOURCE = Path(__file__).with_name("Paimon.java")
NULL, BETWEEN = "\0", "\x1f"
_OPENED = (
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)


def jars() -> list[str]:
    """Paths of the jars; Maven keeps them in its own folder, and looks there first."""
    repository = Path.home() / ".m2" / "repository"
    found = []
    for name in JARS:
        group, artifact, version = name.split(":")
        path = repository.joinpath(*group.split("."), artifact, version, f"{artifact}-{version}.jar")
        if not path.exists():
            get = ["mvn", "-q", "-B", "dependency:get", f"-Dartifact={name}", "-Dtransitive=false"]
            subprocess.run([*get, f"-Dmaven.repo.local={repository}"], check=True, timeout=600)
        found.append(str(path))
    return found


class JavaPaimon:
    """One Java process over one warehouse."""

    def __init__(self, **catalog: str) -> None:
        self._classes = tempfile.TemporaryDirectory(prefix="penstock-interop-")
        path = ":".join([*jars(), self._classes.name])
        subprocess.run(["javac", "-nowarn", "-cp", path, "-d", self._classes.name, str(SOURCE)], check=True)
        options = [f"{name.replace('_', '-')}={value}" for name, value in catalog.items()]
        self._process = subprocess.Popen(
            ["java", "-Xmx1g", *_OPENED, "-cp", path, "Paimon", *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        self._classes.cleanup()

    def ask(self, command: str) -> tuple[list[str], str]:
        """Lines of rows, and the answer behind them. Raises: `AssertionError` for an error of Java's."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        rows: list[str] = []
        while (line := self._process.stdout.readline()).startswith("row "):
            rows.append(line[4:].rstrip("\n"))
        answer = line.strip()
        assert answer, f"Java ended at {command!r}"
        assert not answer.startswith("error "), f"{command}: {answer}"
        return rows, answer

    def rows(self, table: str, **options: str) -> list[tuple[str | None, ...]]:
        """Every row as texts."""
        dynamic = "".join(f" {name.replace('_', '-')}={value}" for name, value in options.items())
        lines, _ = self.ask(f"read {table}{dynamic}")
        return sorted(
            (tuple(None if value == NULL else value for value in line.split(BETWEEN)) for line in lines), key=str
        )

    def number(self, command: str) -> float:
        return float(self.ask(command)[1].split()[-1])

    def files(self, table: str, column: str, low: object, high: object) -> tuple[int, int]:
        """How many files a predicate leaves to read, and how many there are."""
        words = self.ask(f"files {table} {column} {low} {high}")[1].split()
        return int(words[1]), int(words[3])
