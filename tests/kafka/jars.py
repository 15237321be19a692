"""The jars of a broker and of Spark's Kafka connector, from Maven Central or from where the caller has them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pyspark

BROKER = "org.apache.kafka:kafka_2.13:4.1.0"
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
FOLDER = Path(__file__).resolve().parents[2] / "artifacts" / "kafka"
GIVEN = "KAFKA_JARS"
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>local</groupId><artifactId>jars</artifactId><version>1</version><dependencies><dependency>
<groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency></dependencies></project>
"""


class NoJars(Exception):
    """They cannot be had here; the message says what to do."""


def broker_jars() -> list[Path]:
    """Raises: `NoJars`."""
    return _fetched(BROKER, "the broker")


def connector_jars() -> list[Path]:
    """Spark's connector with what it needs: from `KAFKA_JARS`, a folder or a list of files, else from Maven Central.

    Raises: `NoJars`.
    """
    given = os.environ.get(GIVEN)
    if not given:
        return _fetched(f"{CONNECTOR}:{pyspark.__version__}", "the connector of this Spark")
    places = [Path(place) for place in given.replace(os.pathsep, ",").split(",") if place]
    found = [jar for place in places for jar in (sorted(place.glob("*.jar")) if place.is_dir() else [place])]
    missing = [str(jar) for jar in found if not jar.is_file()]
    if missing or not found:
        raise NoJars(f"{GIVEN}={given}: no jar {', '.join(missing) or 'in there'}")
    return found


def _fetched(coordinates: str, what: str) -> list[Path]:
    folder = FOLDER / coordinates.replace(":", "-")
    if not (folder / "complete").exists():
        _fetch(coordinates, folder, what)
    return sorted(folder.glob("*.jar"))


def _fetch(coordinates: str, folder: Path, what: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NoJars(f"{what} ({coordinates}) is fetched by Maven, and there is no mvn on the PATH")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "pom.xml").write_text(_POM.format(*coordinates.split(":")))
    command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=.", "-DincludeScope=runtime"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stdout.splitlines() if "ERROR" in line]
        raise NoJars(
            f"{what} ({coordinates}) cannot be fetched: {errors[0] if errors else done.stdout[-300:]}\n"
            f"Give the jars yourself: make kafka {GIVEN}=/folder/with/jars. For the connector these are"
            " spark-sql-kafka-0-10, spark-token-provider-kafka-0-10, kafka-clients and commons-pool2, in the versions"
            " that your Spark was built with."
        )
    (folder / "complete").touch()
