"""``penstock doctor``: looks at everything a query needs before one is started, and says what to fix."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import click

from penstock.cli.findings import (
    PROBES,
    Finding,
    executor_findings,
    package_findings,
    python_finding,
    store_findings,
    tried,
)
from penstock.cli.terminal import say, say_json
from penstock.errors import ConfigError, PenstockError
from penstock.spark.installed import require_pyspark
from penstock.store import open_store
from penstock.store.base import Store
from penstock.store.local import LocalStore

MARKS = {"ok": "ok  ", "bad": "BAD ", "unknown": "?   "}


@click.command()
@click.option("--checkpoint", metavar="FOLDER", help="Try the storage of a checkpoint folder; nothing is left there.")
@click.option("--master", help="Ask the executors of this master; default: local[2].")
@click.option("--conf", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; may be repeated.")
@click.option("--no-spark", is_flag=True, help="Start no Spark: look at this machine only.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def doctor(
    checkpoint: str | None, master: str | None, settings: tuple[str, ...], no_spark: bool, as_json: bool
) -> None:
    """Check Python, packages, Java, Spark, its executors, the checkpoint's storage and clocks. Exit code 1 tells that
    something is to be fixed."""
    findings = examine(checkpoint, master, settings, spark=not no_spark)
    if as_json:
        say_json(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            say(f"{MARKS[finding.state]} {finding.what}: {finding.seen}")
            if finding.next_step:
                say(f"     next step: {finding.next_step}")
    sys.exit(1 if any(finding.state == "bad" for finding in findings) else 0)


def examine(checkpoint: str | None, master: str | None, settings: tuple[str, ...], *, spark: bool) -> list[Finding]:
    """Everything that can be found out. What cannot be asked because of something else is left out."""
    conf = dict(_pair(text) for text in settings)
    findings = [python_finding(".".join(map(str, sys.version_info[:3]))), tried("PySpark", _pyspark)]
    if findings[-1].state == "ok":
        from penstock.spark.checkup import driver

        findings += [tried("Java", _java), *package_findings(driver())]
    can_run = spark and all(finding.state == "ok" for finding in findings)
    if checkpoint is not None:
        findings += _storage(checkpoint, cluster=master is not None and not master.startswith("local"))
    if can_run:
        findings += _executors(checkpoint if findings[-1].state != "bad" else None, master or "local[2]", conf)
    return findings


def _pyspark() -> str:
    require_pyspark()
    import importlib.metadata

    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("pyspark")
    return "found, without the metadata of a package"


def _java() -> str:
    from penstock.spark.session import require_java

    return require_java()


def _storage(checkpoint: str, *, cluster: bool) -> list[Finding]:
    try:
        store = open_store(checkpoint)
        with _no_new_folders(store):
            return store_findings(store, is_local=isinstance(store, LocalStore), cluster=cluster)
    except PenstockError as error:
        return [Finding("checkpoint storage", "bad", error.seen, error.next_step)]


@contextmanager
def _no_new_folders(store: Store) -> Iterator[None]:
    """A folder that was not there before is gone afterwards, unless something else was put there meanwhile."""
    folder = Path(unquote(urlsplit(store.url).path)) if isinstance(store, LocalStore) else None
    made = [] if folder is None else [one for one in (folder / PROBES, folder, *folder.parents) if not one.exists()]
    try:
        yield
    finally:
        for one in made:
            with suppress(OSError):
                one.rmdir()


def _executors(checkpoint: str | None, master: str, conf: dict[str, str]) -> list[Finding]:
    from penstock.spark.checkup import driver, executors_of
    from penstock.spark.session import session

    try:
        spark = session(master, "penstock doctor", **{"spark_ui_enabled": "false", **conf})
    except Exception as error:  # noqa: BLE001 - whatever Spark says is what to tell
        step = "see that the master is right and answers, and what Spark prints above"
        return [Finding("Spark", "bad", _first_line(error), step)]
    try:
        with _probe(checkpoint) as (url, path):
            found = executors_of(spark, url, path)
        return [Finding("Spark", "ok", f"{spark.version} on {master}"), *executor_findings(driver(), found)]
    except Exception as error:  # noqa: BLE001 - as above
        step = "look at the Spark log; executors need a Python of the driver's version (PYSPARK_PYTHON)"
        return [Finding("executors", "bad", _first_line(error), step)]
    finally:
        spark.stop()


@contextmanager
def _probe(checkpoint: str | None) -> Iterator[tuple[str | None, str | None]]:
    """A file that executors should be able to read: where it is, and its name."""
    if checkpoint is None:
        yield None, None
        return
    store, path = open_store(checkpoint), f"{PROBES}/{uuid4().hex}"
    with _no_new_folders(store):
        store.create(path, b"penstock")
        try:
            yield store.url, path
        finally:
            store.delete([path])


def _first_line(error: Exception) -> str:
    if isinstance(error, PenstockError):
        return error.seen
    from penstock.spark.failures import brief

    return brief(error)


def _pair(text: str) -> tuple[str, str]:
    """Raises: `ConfigError`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--conf {text}", cause="a setting is NAME=VALUE", next_step=f"write --conf {text}=…")
    return name, value


if __name__ == "__main__":  # under spark-submit, which takes a file and no command
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    doctor()
