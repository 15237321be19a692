"""``penstock upkeep``: one look at a table, by hand or by a scheduler."""

from __future__ import annotations

import dataclasses
import json
import sys

import click

from penstock.cli.terminal import say, say_json
from penstock.engine.checkpoints import Checkpoints
from penstock.errors import NoSuchCheckpoint
from penstock.observe.progress import human_bytes
from penstock.protocol.manifest import Committable
from penstock.sinks.paimon.installed import require_pypaimon
from penstock.sinks.upkeep import MergeFor, Upkeep, UpkeepReport
from penstock.store import open_store
from penstock.text import printable
from penstock.units import parse_duration


@click.command()
@click.argument("warehouse")
@click.argument("table", metavar="DATABASE.TABLE")
@click.option("--dry-run", is_flag=True, help="Change nothing; tell what would be done.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.option("--merge/--no-merge", default=True, show_default=True, help="Merge manifests.")
@click.option("--compact/--no-compact", default=True, show_default=True, help="Rewrite small files of append tables.")
@click.option(
    "--merge-for",
    type=click.Choice(["reads", "writes"]),
    help="What to spare where files are merged by key; reads: one file per bucket; default: the table's options.",
)
@click.option("--expire/--no-expire", default=True, show_default=True, help="Let old snapshots go.")
@click.option("--keep", type=click.IntRange(min=1), help="Snapshots that stay at least; default: the table's option.")
@click.option("--keep-at-most", type=click.IntRange(min=1), help="Snapshots that stay at most.")
@click.option("--expire-older-than", metavar="DURATION", help='Age of snapshots that may go, such as "1 d".')
@click.option(
    "--orphans-older-than", metavar="DURATION", help="Also remove files that nothing refers to; at least an hour."
)
@click.option(
    "--checkpoint",
    "folders",
    multiple=True,
    metavar="FOLDER",
    help="Checkpoint folder of a query that writes to the table; files that wait there for their commit stay.",
)
@click.option(
    "--forget", multiple=True, metavar="USER", help="Commit user of a query that will never be started again."
)
def upkeep(
    warehouse: str,
    table: str,
    dry_run: bool,
    as_json: bool,
    merge: bool,
    compact: bool,
    merge_for: MergeFor | None,
    expire: bool,
    keep: int | None,
    keep_at_most: int | None,
    expire_older_than: str | None,
    orphans_older_than: str | None,
    folders: tuple[str, ...],
    forget: tuple[str, ...],
) -> None:
    """Merge manifests, compact small files and expire snapshots of a Paimon table in a local WAREHOUSE.

    Queries may commit to the table meanwhile. Snapshots that prove what a query committed stay, as do tags, branches
    and what consumers have not read.
    """
    require_pypaimon("penstock upkeep")
    from penstock.sinks.paimon.local import as_local
    from penstock.sinks.paimon.upkeep.keeper import PaimonKeeper

    defaults = Upkeep()
    policy = Upkeep(
        manifests=defaults.manifests if merge else None,
        small_files=defaults.small_files if compact else None,
        merge_for=merge_for,
        expire=expire,
        snapshots=keep,
        snapshots_max=keep_at_most,
        snapshots_for=_duration(expire_older_than),
        orphans_after=_duration(orphans_older_than),
    )
    keeper = PaimonKeeper(
        as_local(warehouse) or warehouse,
        table,
        policy,
        pending=lambda: [committable for folder in folders for committable in _waiting(folder)],
        forgotten=forget,
        dry_run=dry_run,
    )
    report = UpkeepReport(more=True)
    while report.more and not report.failures:
        report = dataclasses.replace(report, more=False).plus(keeper.step())
    if as_json:
        say_json(json.dumps({"dry_run": dry_run, **_fields(report)}, indent=2))
    else:
        for line in _lines(report):
            say(printable(line))
    for failure in report.failures:
        say(failure, err=True)
    if report.failures:
        sys.exit(1)


def _duration(text: str | None) -> float | None:
    return None if text is None else parse_duration(text)


def _waiting(folder: str) -> list[Committable]:
    """What any checkpoint in the folder may still commit, to whichever table.

    Raises: `NoSuchCheckpoint` when it holds none: a misspelt folder would protect nothing.
    """
    manifests = Checkpoints(open_store(folder)).retained()
    if not manifests:
        raise NoSuchCheckpoint(
            f"{folder} holds no checkpoint",
            cause="the folder's name is misspelt, or its query never started",
            next_step="name the folder that was given as checkpoint=; nothing was changed by orphan cleanup",
        )
    sinks = [sink for manifest in manifests for sink in manifest.sinks.values()]
    return [committable for sink in sinks for pending in sink.pending for committable in pending.committables]


def _fields(report: UpkeepReport) -> dict[str, object]:
    fields = dataclasses.asdict(report)
    del fields["more"]
    return fields


def _lines(report: UpkeepReport) -> list[str]:
    lines = [
        f"manifests  {report.manifests_merged:>8,} merged into {report.manifests_written:,}",
        f"files      {report.files_compacted:>8,} compacted into {report.files_written:,}",
        f"snapshots  {report.snapshots_expired:>8,} expired",
        f"orphans    {report.orphans_removed:>8,} removed",
        f"freed      {human_bytes(report.bytes_removed):>8}",
    ]
    if report.held_by is not None:
        lines.append(f"older snapshots stay, {report.held_by} needs them")
    return lines + list(report.notes)
