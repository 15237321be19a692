"""Tables that a catalog knows: by JDBC, and by a REST server that publishes snapshots itself."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import CommitFailed, ConfigError, Fenced, PenstockError
from penstock.sinks.paimon.open import open_table
from penstock.sinks.paimon.sink import Paimon
from tests.support.paimon_rest import TOKEN, RestCatalog
from tests.support.tables import SCHEMA, commit, epoch, ids_of


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RestCatalog]:
    with RestCatalog(tmp_path / "lake") as made:
        yield made


@pytest.fixture
def sink(server: RestCatalog) -> Paimon:
    made = Paimon("lake", "shop.words", catalog=server.options)
    made.check(SCHEMA)
    return made


def ids_in(sink: Paimon) -> Counter[int]:
    builder = open_table(sink.warehouse, sink.table).new_read_builder()
    return Counter(builder.new_read().to_arrow(builder.new_scan().plan().splits())["id"].to_pylist())


def test_rows_are_committed_by_the_rest_server_and_once(sink: Paimon, server: RestCatalog) -> None:
    committer = sink.open_committer("me")
    for checkpoint in (1, 2):
        commit(committer, checkpoint, epoch(sink, checkpoint))
    assert ids_in(sink) == ids_of([1, 2])
    again = sink.open_committer("me")
    commit(again, 2, epoch(sink, 2))
    assert ids_in(sink) == ids_of([1, 2])
    assert server.commits == 2


def test_of_two_drivers_that_commit_one_checkpoint_to_a_rest_catalog_one_does(
    sink: Paimon, server: RestCatalog
) -> None:
    """The older one is paused where it has asked whether it leads; the catalog has no room for its snapshot then."""
    old, new = sink.open_committer("me"), sink.open_committer("me")
    committables = epoch(sink, 1)

    def paused() -> bool:
        commit(new, 1, committables)
        return True

    commit(old, 1, committables, still_leader=paused)
    assert ids_in(sink) == ids_of([1])
    assert server.commits == 1


def test_a_driver_that_does_not_lead_commits_nothing_to_a_rest_catalog(sink: Paimon, server: RestCatalog) -> None:
    with pytest.raises(Fenced):
        commit(sink.open_committer("me"), 1, epoch(sink, 1), still_leader=lambda: False)
    assert server.commits == 0


def test_an_answer_that_a_rest_catalog_loses_is_found_in_the_table(sink: Paimon, server: RestCatalog) -> None:
    committer = sink.open_committer("me")
    committables = epoch(sink, 1)
    server.fail_after_commit = True
    try:
        commit(committer, 1, committables)
    except CommitFailed:
        commit(committer, 1, committables)
    assert ids_in(sink) == ids_of([1])
    assert server.commits == 1


def test_a_token_is_neither_shown_nor_lost_on_the_way_to_a_task(sink: Paimon, server: RestCatalog) -> None:
    assert TOKEN not in repr(sink)
    assert TOKEN not in sink.description
    there = pickle.loads(pickle.dumps(sink))
    assert ids_in(there) == Counter()
    wrong = Paimon("lake", "shop.words", catalog=server.options | {"token": "wrong-token"})
    with pytest.raises(PenstockError) as refused:
        wrong.check(SCHEMA)
    assert "wrong-token" not in str(refused.value)


def test_a_jdbc_catalog_knows_the_table_and_commits_are_as_in_a_folder(tmp_path: Path) -> None:
    catalog = {"metastore": "jdbc", "uri": f"jdbc:sqlite:{tmp_path}/catalog.db"}
    sink = Paimon(str(tmp_path / "lake"), "shop.words", catalog=catalog)
    sink.check(SCHEMA)
    committer = sink.open_committer("me")
    for checkpoint in (1, 2):
        commit(committer, checkpoint, epoch(sink, checkpoint))
    assert ids_in(sink) == ids_of([1, 2])
    keeper = sink.open_keeper("me", tuple)
    assert keeper is not None
    assert keeper.step().failures == ()


def test_a_catalog_that_pypaimon_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="hive"):
        Paimon("lake", "shop.words", catalog={"metastore": "hive", "uri": "thrift://host"})
