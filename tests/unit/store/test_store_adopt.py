"""Taking a file of another store over: a link where that can be, else a copy; the same facts for all stores."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import pytest

from penstock.errors import MissingFile, StorageFailed
from penstock.store import AlreadyExists, LocalStore, MemoryStore, Store
from tests.support.object_stores import KINDS, Places, places, server

__all__ = ["places", "server"]


@pytest.fixture(params=list(itertools.product(KINDS, KINDS)), ids="-to-".join)
def stores(request: pytest.FixtureRequest, places: Places) -> tuple[Store, Store]:
    """Where a file is, and where it is to be."""
    return places.make(request.param[0], "origin"), places.make(request.param[1], "target")


@pytest.mark.parametrize("link", [True, False])
def test_an_adopted_file_has_its_bytes_and_outlives_the_original(stores: tuple[Store, Store], link: bool) -> None:
    """B14."""
    origin, target = stores
    for name, data in (("state/a/1", bytes(range(256)) * 100), ("state/a/2", b"")):
        origin.create(name, data)
        target.adopt(name, origin, link=link)
        origin.delete([name])
        assert target.read(name) == data
        assert not origin.exists(name)


def test_a_name_that_is_taken_keeps_its_bytes(stores: tuple[Store, Store]) -> None:
    origin, target = stores
    origin.create("a", b"theirs")
    target.create("a", b"mine")
    for link in (True, False):
        with pytest.raises(AlreadyExists):
            target.adopt("a", origin, link=link)
    assert target.read("a") == b"mine"


def test_a_file_that_is_not_there_is_named_where_it_is_missing(stores: tuple[Store, Store]) -> None:
    """B12."""
    origin, target = stores
    with pytest.raises(MissingFile) as caught:
        target.adopt("state/gone", origin)
    assert "state/gone" in str(caught.value)
    assert "target" not in str(caught.value)
    assert target.list("") == []


def test_on_one_file_system_nothing_is_copied_unless_asked_for(tmp_path: Path) -> None:
    origin, target = LocalStore(tmp_path / "origin"), LocalStore(tmp_path / "target")
    origin.create("linked", b"x")
    origin.create("copied", b"x")
    target.adopt("linked", origin)
    target.adopt("copied", origin, link=False)
    assert (tmp_path / "origin" / "linked").samefile(tmp_path / "target" / "linked")
    assert not (tmp_path / "origin" / "copied").samefile(tmp_path / "target" / "copied")


def test_a_copy_on_this_disk_of_an_object_is_not_linked(tmp_path: Path, places: Places) -> None:
    """B14: it may be of another file of that name, or have lost bytes; who adopts a file gets the object's."""
    origin, target = places.bucket("origin"), LocalStore(tmp_path / "target")
    origin.create("state/a/1", b"right")
    copy = Path(origin.local_path("state/a/1") or "")
    copy.write_bytes(b"wrong")
    target.adopt("state/a/1", origin)
    assert target.read("state/a/1") == b"right"
    assert not copy.samefile(tmp_path / "target" / "state/a/1")


def test_a_disk_that_fills_up_while_copying_leaves_no_name_and_no_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B12."""
    origin, target = MemoryStore(), LocalStore(tmp_path)
    origin.create("a", b"x" * 1000)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StorageFailed, match="No space left"):
            target.adopt("a", origin)
    assert target.list("") == []
    assert target.leftovers(0) == ()
    target.adopt("a", origin)
    assert target.read("a") == b"x" * 1000
