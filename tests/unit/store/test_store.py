"""The checkpoint directory: the same facts hold for a folder, for memory and for object stores."""

from __future__ import annotations

import errno
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError, CorruptFile, MissingFile, StorageFailed, UnsafeName
from penstock.store import AlreadyExists, Entry, FileWriter, LocalStore, MemoryStore, Store, open_store
from tests.support.object_stores import KINDS, Places, places, server

__all__ = ["places", "server"]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, places: Places) -> Store:
    return places.make(request.param)


@pytest.fixture
def local(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "checkpoint")


def write_and_close(writer: FileWriter, data: bytes) -> None:
    writer.write(data)
    writer.close()


def write(store: Store, path: str, data: bytes) -> None:
    write_and_close(store.open_writer(path), data)


def failing(code: int) -> Callable[..., int]:
    def fail(*_: object, **__: object) -> int:
        raise OSError(code, os.strerror(code))

    return fail


def test_what_was_created_is_read_back(store: Store) -> None:
    store.create("manifests/1.json", b"one")
    assert store.read("manifests/1.json") == b"one"
    assert store.exists("manifests/1.json")


def test_a_name_is_created_once_and_keeps_its_first_bytes(store: Store) -> None:
    store.create("a", b"first")
    with pytest.raises(AlreadyExists):
        store.create("a", b"second")
    assert store.read("a") == b"first"


def test_of_64_threads_that_create_one_name_exactly_one_wins(store: Store) -> None:
    """C9: publishing a checkpoint and claiming a generation both rest on this."""
    start = threading.Barrier(64)

    def create(number: int) -> int | None:
        start.wait()
        try:
            store.create("manifests/7.json", b"%d" % number * 1000)
        except AlreadyExists:
            return None
        return number

    with ThreadPoolExecutor(64) as pool:
        winners = [winner for winner in pool.map(create, range(64)) if winner is not None]
    assert len(winners) == 1
    assert store.read("manifests/7.json") == b"%d" % winners[0] * 1000
    assert [entry.path for entry in store.list("")] == ["manifests/7.json"]


def test_a_file_that_is_not_there_is_a_missing_file_that_names_its_path(store: Store) -> None:
    for use in (store.read, store.open_reader):
        with pytest.raises(MissingFile, match="segments/gone"):
            use("segments/gone")
    assert not store.exists("segments/gone")


def test_a_folder_does_not_exist_as_a_file(store: Store) -> None:
    store.create("folder/file", b"")
    assert not store.exists("folder")
    assert not store.exists("folder/file/below")


def test_a_list_is_recursive_sorted_and_knows_sizes(store: Store) -> None:
    for path in ("b/2", "a/x/3", "a/1", "ab/4"):
        write(store, path, path.encode())
    assert store.list("a") == store.list("a/") == [Entry("a/1", 3), Entry("a/x/3", 5)]
    assert [entry.path for entry in store.list("")] == ["a/1", "a/x/3", "ab/4", "b/2"]


def test_a_list_of_a_folder_that_is_not_there_is_empty(store: Store) -> None:
    assert store.list("") == store.list("nothing/here") == []


def test_deleting_a_file_that_is_gone_is_not_an_error(store: Store) -> None:
    store.create("a", b"1")
    store.delete(["a", "a", "never/was"])
    assert store.list("") == []


def test_a_deleted_name_can_be_created_again(store: Store) -> None:
    store.create("folder/a", b"1")
    store.delete(["folder/a"])
    store.create("folder/a", b"2")
    assert store.read("folder/a") == b"2"


def test_appended_lines_follow_each_other(store: Store) -> None:
    store.append("events.jsonl", b"{}")
    store.append("events.jsonl", b"[]\n")
    assert store.read("events.jsonl") == b"{}\n[]\n"


def test_lines_appended_by_many_threads_do_not_mix(store: Store) -> None:
    lines = [b"%03d" % number * 100 for number in range(200)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda line: store.append("events.jsonl", line), lines))
    assert sorted(store.read("events.jsonl").split()) == lines


def test_a_writer_knows_its_offset_and_takes_any_bytes(store: Store) -> None:
    writer = store.open_writer("segments/1")
    assert writer.write(b"abc") == 3
    assert writer.write(memoryview(bytearray(b"defg"))[1:]) == 3
    assert writer.tell() == 6
    writer.close()
    assert store.read("segments/1") == b"abcefg"


def test_an_aborted_file_was_never_there(store: Store) -> None:
    writer = store.open_writer("segments/1")
    writer.write(b"abc")
    writer.abort()
    assert store.list("") == []
    write(store, "segments/1", b"another attempt")


def test_abort_after_close_keeps_the_file(store: Store) -> None:
    writer = store.open_writer("segments/1")
    writer.close()
    writer.abort()
    assert store.exists("segments/1")


def test_a_name_is_written_once(store: Store) -> None:
    first = store.open_writer("segments/1")
    with pytest.raises(AlreadyExists):
        store.open_writer("segments/1")
    first.close()
    with pytest.raises(AlreadyExists):  # an object store tells at the end
        write(store, "segments/1", b"other")
    assert store.read("segments/1") == b""


def test_a_reader_reads_at_any_offset(store: Store) -> None:
    write(store, "f", bytes(range(100)))
    reader = store.open_reader("f")
    target = bytearray(10)
    reader.read_into(45, memoryview(target))
    assert (reader.size, bytes(target)) == (100, bytes(range(45, 55)))
    reader.close()


def test_reading_beyond_the_end_is_a_corrupt_file_that_says_where_it_ends(store: Store) -> None:
    write(store, "segments/short", bytes(100))
    reader = store.open_reader("segments/short")
    with pytest.raises(CorruptFile, match=r"segments/short ends at byte 100; bytes 95 to 105"):
        reader.read_into(95, memoryview(bytearray(10)))
    reader.close()


@pytest.mark.parametrize("path", ["../out", "a/../../out", "/etc/passwd", "", "a//b", "./a", "a/.", "a\0b"])
def test_a_path_never_leads_out_of_the_store(store: Store, path: str) -> None:
    uses: list[Callable[[str], object]] = [
        store.read,
        store.exists,
        store.open_writer,
        store.open_reader,
        store.local_path if isinstance(store, LocalStore) else store.read,
        lambda path: store.create(path, b""),
        lambda path: store.append(path, b""),
        lambda path: store.delete([path]),
    ]
    for use in uses:
        with pytest.raises(UnsafeName):
            use(path)


def test_a_store_opened_by_its_url_is_the_same_store(store: Store) -> None:
    store.create("a", b"1")
    assert open_store(store.url).read("a") == b"1"


def test_a_store_travels_to_a_task(store: Store) -> None:
    store.create("a", b"1")
    assert pickle.loads(pickle.dumps(store)).read("a") == b"1"


# --- LocalStore only -------------------------------------------------------------------------------------------------


def test_a_crash_inside_create_leaves_a_file_that_only_leftovers_shows(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B13"""
    local.create("manifests/1.json", b"1")
    monkeypatch.setattr(os, "link", failing(errno.EIO))
    monkeypatch.setattr(os, "unlink", failing(errno.EIO))
    with pytest.raises(StorageFailed):
        local.create("manifests/2.json", b"22")
    monkeypatch.undo()
    assert local.list("") == [Entry("manifests/1.json", 1)]
    assert local.leftovers(older_than_s=3600) == ()
    [left] = local.leftovers(older_than_s=0)
    assert (left.path.startswith("manifests/.tmp-"), left.bytes) == (True, 2)
    local.delete([left.path])
    assert local.leftovers(older_than_s=0) == ()


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_is_named_with_the_path_and_leaves_nothing(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    writer = local.open_writer("segments/1")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(errno.ENOSPC))
        with pytest.raises(StorageFailed, match=r"manifests/1(?s:.)*the disk is full"):
            local.create("manifests/1", b"x")
        with pytest.raises(StorageFailed, match=r"segments/1(?s:.)*the disk is full"):
            write_and_close(writer, b"x")
        writer.abort()
    assert local.list("") == []
    assert local.leftovers(older_than_s=0) == ()


def test_a_disk_that_takes_a_part_and_then_refuses_gives_no_short_file(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, room = os.write, [10]

    def nearly_full(descriptor: int, data: memoryview) -> int:
        if room[0] == 0:
            raise OSError(errno.ENOSPC, "no space")
        taken = real(descriptor, data[: room[0]])
        room[0] -= taken
        return taken

    monkeypatch.setattr(os, "write", nearly_full)
    with pytest.raises(StorageFailed):
        local.create("a", bytes(11))
    assert not local.exists("a")


def test_short_writes_and_short_reads_are_continued(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    write_some, read_some = os.write, os.preadv
    monkeypatch.setattr(os, "write", lambda descriptor, data: write_some(descriptor, data[:7]))
    monkeypatch.setattr(os, "preadv", lambda descriptor, views, offset: read_some(descriptor, [views[0][:5]], offset))
    write(local, "f", bytes(range(100)))
    target = bytearray(100)
    reader = local.open_reader("f")
    reader.read_into(0, memoryview(target))
    reader.close()
    assert bytes(target) == bytes(range(100))


def test_a_folder_that_is_not_writable_is_a_storage_failure(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.store.local.io.FileIO", failing(errno.EACCES))
    with pytest.raises(StorageFailed, match=r"segments/1(?s:.)*not readable or writable for this user"):
        local.open_writer("segments/1")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_a_storage_failure(local: LocalStore, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageFailed, match="not readable or writable"):
        local.create("a", b"")
    tmp_path.chmod(0o700)


def test_a_file_in_the_way_of_a_folder_is_a_storage_failure(local: LocalStore) -> None:
    local.create("segments", b"")
    with pytest.raises(StorageFailed, match="segments"):
        local.open_writer("segments/1")
    with pytest.raises(StorageFailed, match="segments"):
        local.create("segments/deeper/1", b"")


def test_a_file_system_without_hard_links_is_refused_with_the_reason(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", failing(errno.EOPNOTSUPP))
    with pytest.raises(StorageFailed, match="no hard links"):
        local.create("a", b"")


def test_a_link_whose_answer_was_lost_counts_as_won(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS repeats a request whose answer was lost; the repeat fails on our own link."""
    real = os.link

    def link_twice(*names: str, **how: Any) -> None:
        real(*names, **how)
        real(*names, **how)

    monkeypatch.setattr(os, "link", link_twice)
    local.create("a", b"1")
    assert local.read("a") == b"1"


def test_file_and_folders_are_synced_before_create_and_close_return(
    local: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def record(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    root = tmp_path / "checkpoint"
    write(local, "segments/e/1", b"x")
    new_folders = [str(root / "segments"), str(root), str(tmp_path)]
    assert synced == [*new_folders, str(root / "segments/e/1"), str(root / "segments/e")]
    synced.clear()
    write(local, "segments/e/2", b"x")
    assert synced == [str(root / "segments/e/2"), str(root / "segments/e")]
    synced.clear()
    local.create("segments/e/3", b"x")
    assert ".tmp-" in synced[0]
    assert synced[1:] == [str(root / "segments/e")]


def test_a_folder_removed_meanwhile_is_made_again(local: LocalStore, tmp_path: Path) -> None:
    write(local, "segments/1", b"x")
    local.delete(["segments/1"])
    (tmp_path / "checkpoint/segments").rmdir()
    write(local, "segments/1", b"y")
    assert local.read("segments/1") == b"y"


def test_a_line_that_cannot_be_appended_stops_nothing(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "write", failing(errno.ENOSPC))
    local.append("events.jsonl", b"{}")
    assert "events.jsonl" in caplog.text


def test_a_local_file_can_be_mapped_and_one_in_memory_cannot(local: LocalStore, tmp_path: Path) -> None:
    assert local.local_path("a/b") == str(tmp_path / "checkpoint/a/b")
    assert MemoryStore().local_path("a/b") is None


# --- open_store ------------------------------------------------------------------------------------------------------


def test_a_path_opens_a_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LocalStore(tmp_path / "a b%20c").create("x", b"1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    uri = (tmp_path / "a b%20c").as_uri()
    for url in ("a b%20c", "~/a b%20c", str(tmp_path / "a b%20c"), uri, uri.replace("file:///", "file:/")):
        assert open_store(url).read("x") == b"1"


def test_a_memory_store_lives_in_the_process_under_its_name() -> None:
    open_store("memory://shared-by-name").create("x", b"1")
    assert open_store("memory://shared-by-name").read("x") == b"1"
    assert not open_store("memory://another-name").exists("x")


def test_memory_stores_without_a_name_share_nothing() -> None:
    first, second = MemoryStore(), MemoryStore()
    first.create("x", b"1")
    assert not second.exists("x")


@pytest.mark.parametrize(
    "url",
    [
        *("s3:///x", "s3://bucket/a//b", "gs://bucket/a?b", "dbfs:/x", "hdfs://host/x"),
        *("file://host/x", "file://", "memory://", "memory://a/b", ""),
    ],
)
def test_any_other_location_is_a_config_error_that_names_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert repr(url) in str(caught.value)
