"""Offsets of a plain query of Spark, from its checkpoint folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.engine.sparkorigin import Begin, bring_folders, take_offsets
from penstock.errors import RestoreRefused
from penstock.protocol.sourcelog import EVOLUTION
from penstock.store import open_store

FILES = "FileSource[/data/orders]"
BY_NAME = f'{{"conf":{{"{EVOLUTION}":"true"}}}}'


def spark_folder(tmp_path: Path, *offsets: str, committed: bool = True, version: str = "v1", head: str = "{}") -> str:
    folder = tmp_path / "spark"
    for log in ("offsets", "commits", "sources/0"):
        (folder / log).mkdir(parents=True)
    (folder / "offsets" / "6").write_text("v1\n{}\n-")
    (folder / "commits" / "6").write_text("v1\n{}")
    (folder / "offsets" / "7").write_text("\n".join([version, head, *offsets]))
    if committed:
        (folder / "commits" / "7").write_text("v1\n{}")
    (folder / "sources" / "0" / "0").write_text('v1\n{"path":"file:///data/orders/1.parquet","timestamp":1}')
    return str(folder)


def take(place: str, *readers: str, source: str = "orders", without_state: bool = False) -> dict[str, str | None]:
    taken = take_offsets(Begin(source, place, without_state), readers or (FILES,), (), open_store)
    return dict(taken.seed.offsets)


def test_offsets_of_the_last_finished_micro_batch_are_taken_with_what_spark_knows_of_files(tmp_path: Path) -> None:
    """F10."""
    place = spark_folder(tmp_path, '{"logOffset":4}')
    taken = take_offsets(Begin("orders", place, without_state=False), (FILES,), {"orders"}, open_store)
    assert taken.seed.offsets == {"orders_2": '{"logOffset":4}'}
    assert "micro-batch 7" in taken.seed.told
    target = open_store(str(tmp_path / "new"))
    bring_folders(taken, target)
    bring_folders(taken, target)
    assert b"1.parquet" in target.read("source/sources/orders_2/0")


def test_one_of_several_sources_is_named_by_its_place_or_name(tmp_path: Path) -> None:
    place = spark_folder(tmp_path, '{"logOffset":4}', '{"t":{"0":9}}')
    assert take(f"{place}@1", "kafka") == {"orders": '{"t":{"0":9}}'}
    with pytest.raises(RestoreRefused, match=r"at the places 0, 1.*orders is made of 1 readers"):
        take(place)
    assert take(place, FILES, "kafka") == {"orders": '{"logOffset":4}', "orders_2": '{"t":{"0":9}}'}


def test_a_source_of_the_same_name_is_taken_by_it(tmp_path: Path) -> None:
    place = spark_folder(tmp_path, 'late:{"logOffset":1}', 'orders:{"logOffset":4}', version="v2", head=BY_NAME)
    assert take(place) == {"orders": '{"logOffset":4}'}
    with pytest.raises(RestoreRefused, match="named late, orders"):
        take(place, source="other")


@pytest.mark.parametrize(
    ("offset", "reader", "message"),
    [
        ('{"logOffset":4}', "kafka", "the query reads another source"),
        ('{"t":{"0":9}}', FILES, "the query reads another source"),
        ('{"logOffset":4}', "FileSource[/data/clicks]", "it has read file:///data/orders/1.parquet"),
    ],
)
def test_another_source_is_refused(tmp_path: Path, offset: str, reader: str, message: str) -> None:
    with pytest.raises(RestoreRefused, match=message):
        take(spark_folder(tmp_path, offset), reader)


def test_a_micro_batch_that_was_not_finished_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RestoreRefused, match="micro-batch 7 was begun and not finished"):
        take(spark_folder(tmp_path, "1", committed=False))


def test_state_is_not_taken_and_that_has_to_be_said(tmp_path: Path) -> None:
    place = spark_folder(tmp_path, '{"logOffset":4}')
    (Path(place) / "state" / "0").mkdir(parents=True)
    (Path(place) / "state" / "0" / "1.delta").write_text("x")
    with pytest.raises(RestoreRefused, match="without_state=True"):
        take(place)
    assert take(place, without_state=True) == {"orders": '{"logOffset":4}'}


def test_a_folder_that_is_no_checkpoint_of_spark_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RestoreRefused, match="has no offsets/"):
        take(str(tmp_path / "nothing"))
    (tmp_path / "ours" / "manifests").mkdir(parents=True)
    (tmp_path / "ours" / "manifests" / "0000000001.json").write_text("{}")
    with pytest.raises(RestoreRefused, match="restore="):
        take(str(tmp_path / "ours"))
    with pytest.raises(RestoreRefused, match="cannot be read"):
        take(spark_folder(tmp_path, version="v9"))
