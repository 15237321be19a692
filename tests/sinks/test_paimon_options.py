"""An option of a table is honoured or refused: none is accepted and ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import TableRefused
from penstock.sinks.paimon.options import check_options, reason_of
from penstock.sinks.paimon.sink import Paimon
from tests.support.tables import SCHEMA, make_table

IGNORED_BY_PYPAIMON = [
    "metadata.iceberg.storage",
    "tag.automatic-creation",
    "partition.expiration-time",
    "record-level.expire-time",
    "commit.callbacks",
    "commit.force-compact",
    "metastore.partitioned-table",
    "file-index.bloom-filter.columns",
    "full-compaction.delta-commits",
    "partition.mark-done-action",
    "never.heard-of",
]


@pytest.mark.parametrize("name", IGNORED_BY_PYPAIMON)
def test_an_option_that_nobody_would_honour_is_refused_before_a_table_is_made(name: str, tmp_path: Path) -> None:
    sink = Paimon(str(tmp_path), "db.t", options={name: "hadoop"})
    with pytest.raises(TableRefused, match=name) as refused:
        sink.check(SCHEMA)
    assert reason_of(name) in str(refused.value)
    assert name in refused.value.next_step
    assert not (tmp_path / "db.db").exists()


def test_an_existing_table_is_judged_by_the_same_list(tmp_path: Path) -> None:
    sink = make_table(tmp_path, SCHEMA, options={"tag.automatic-creation": "process-time"})
    with pytest.raises(TableRefused, match="no tag would be made"):
        sink.check(SCHEMA)


def test_an_option_that_the_user_knows_to_be_ignored_passes(tmp_path: Path) -> None:
    options = {"tag.automatic-creation": "process-time", "never.heard-of": "1"}
    make_table(tmp_path, SCHEMA, options=options)
    with pytest.raises(TableRefused, match=r"never\.heard-of"):
        Paimon(str(tmp_path), "db.t", ignore_options=["tag.automatic-creation"]).check(SCHEMA)
    Paimon(str(tmp_path), "db.t", ignore_options=list(options)).check(SCHEMA)


def test_what_is_honoured_and_what_concerns_readers_only_passes() -> None:
    check_options(
        dict.fromkeys(
            [
                "bucket",
                "snapshot.time-retained",
                "scan.mode",
                "fields.n.aggregate-function",
                "fields.n.stats-mode",
                "consumer-id",
                "lookup.cache-rows",
                "write-only",
            ],
            "1",
        )
    )
