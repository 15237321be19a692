"""Java readers of Delta Lake and Iceberg as a process that answers one question at a time.

Their jars come from Maven Central when first used: Delta's Java kernel and Iceberg's own library, which share no code
with the libraries that Penstock writes by.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows as JSON has them, files that were read, and files that there are."""

    rows: list[Any]
    read: int
    files: int


class JavaLakes:
    """One Java process."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-interop-")
        listed = Path(self._folder.name, "classpath")
        maven = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:build-classpath"]
        subprocess.run([*maven, f"-Dmdep.outputFile={listed}"], check=True, timeout=900)
        path = f"{listed.read_text().strip()}:{self._folder.name}"
        subprocess.run(["javac", "-nowarn", "-cp", path, "-d", self._folder.name, str(HERE / "Lakes.java")], check=True)
        opened = "--add-opens=java.base/java.nio=ALL-UNNAMED"
        self._process = subprocess.Popen(
            ["java", "-Xmx1g", opened, "-Dlog4j2.level=ERROR", "-cp", path, "Lakes"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._folder.cleanup()

    def read(
        self, kind: str, place: str, version: int | None = None, where: tuple[str, int, int] | None = None
    ) -> Answer:
        """What Java reads of a table. Raises: `AssertionError` for an error of Java's."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        column, low, high = where or ("-", "-", "-")
        self._process.stdin.write(f"{kind} {place} {'-' if version is None else version} {column} {low} {high}\n")
        self._process.stdin.flush()
        rows = []
        while (line := self._process.stdout.readline()).startswith("row "):
            rows.append(json.loads(line[4:]))
        assert line.startswith("files "), f"{kind} {place}: {line.strip() or 'Java ended'}"
        words = line.split()
        return Answer(rows, int(words[1]), int(words[3]))
