"""Copies of objects on the local disk: fetched once, never stale, bounded, and no harm when anything goes wrong."""

from __future__ import annotations

import errno
import io
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.bucket import BucketServer
from penstock.errors import ConfigError, CorruptFile, MissingFile, StorageFailed
from penstock.store.arrowfile import ArrowFile, ArrowFileWriter
from penstock.store.base import Store
from penstock.store.cache import TEMP_S_MAX, Cache
from tests.conftest import ROOT
from tests.support.object_stores import Places, places, server

__all__ = ["places", "server"]

FILE = "state/totals/0000000001-g1-s0-a0-0.arrow"


def write_rows(store: Store, value: int, path: str = FILE) -> str:
    """A state file whose bytes depend on `value`; returns its checksum."""
    batch = pa.record_batch({"n": [value] * 100})
    writer = ArrowFileWriter(store, path, batch.schema, kind="state")
    writer.write(batch, np.zeros(100, np.int64))
    return writer.close().checksum


def value_in(store: Store, checksum: str, path: str = FILE) -> int:
    with ArrowFile(store, path, checksum, mapped=True) as file:
        return file.read_batch(0).column(0)[0].as_py()


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.parent.name != "locks"]


@pytest.fixture
def elsewhere(places: Places) -> Store:
    """The same folder, seen from a machine with nothing in its cache."""
    return places.bucket(cache=Cache(places.folder / "elsewhere"))


def test_a_file_that_was_written_here_is_never_downloaded(places: Places, server: BucketServer) -> None:
    bucket = places.bucket()
    checksum = write_rows(bucket, 1)
    assert value_in(bucket, checksum) == 1
    assert dict(server.counts()) == {"PUT": 1}


def test_a_file_from_elsewhere_is_downloaded_once(places: Places, elsewhere: Store, server: BucketServer) -> None:
    checksum = write_rows(places.bucket(), 1)
    for _ in range(3):
        assert value_in(elsewhere, checksum) == 1
    assert dict(server.counts()) == {"PUT": 1, "GET": 1}


def test_a_large_file_is_downloaded_in_parts(
    places: Places, elsewhere: Store, server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.store.objectfiles.PART_BYTES", 100)
    checksum = write_rows(places.bucket(), 1)
    assert value_in(elsewhere, checksum) == 1
    assert server.counts()["GET"] > 5


def test_segments_are_read_in_place_and_not_kept(places: Places, server: BucketServer) -> None:
    bucket = places.bucket()
    checksum = write_rows(bucket, 1, "segments/edge/1.arrow")
    assert bucket.local_path("segments/edge/1.arrow") is None
    assert value_in(bucket, checksum, "segments/edge/1.arrow") == 1
    assert files_in(places.folder / "cache") == []


def test_of_many_threads_one_downloads(places: Places, elsewhere: Store, server: BucketServer) -> None:
    checksum = write_rows(places.bucket(), 1)
    server.latency_s = 0.05
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: value_in(elsewhere, checksum), range(8))) == {1}
    assert server.counts()["GET"] == 1


def test_a_folder_begun_anew_under_the_same_url_is_never_served_old_bytes(
    places: Places, elsewhere: Store, server: BucketServer
) -> None:
    """Names hold generation and attempt, and both begin anew: the checksum in the manifest tells files apart."""
    first = places.bucket()
    checksum = write_rows(first, 1)
    assert value_in(elsewhere, checksum) == 1
    server._delete("bucket", f"checkpoint/{FILE}")  # by hand: nobody told the caches
    another = places.bucket(cache=Cache(places.folder / "third"))
    anew = write_rows(another, 2)
    assert anew != checksum
    assert value_in(elsewhere, anew) == 2
    assert value_in(first, anew) == 2
    with pytest.raises(CorruptFile, match="another file"):
        value_in(elsewhere, checksum)


def test_two_checkpoints_in_one_cache_do_not_meet(places: Places) -> None:
    one, two = places.bucket("one"), places.bucket("two")
    checksums = write_rows(one, 1), write_rows(two, 2)
    assert (value_in(one, checksums[0]), value_in(two, checksums[1])) == (1, 2)


@pytest.mark.parametrize("damage", ["first byte", "batch", "last byte", "cut off", "empty"])
def test_a_copy_that_lost_bytes_is_fetched_again(
    places: Places, elsewhere: Store, server: BucketServer, damage: str
) -> None:
    checksum = write_rows(places.bucket(), 1)
    copy = Path(elsewhere.local_path(FILE) or "")
    data = bytearray(copy.read_bytes())
    places_of = {"first byte": 8, "batch": len(data) // 2, "last byte": len(data) - 30}
    if damage in places_of:
        data[places_of[damage]] ^= 1
    copy.write_bytes({"cut off": data[:-50], "empty": b""}.get(damage, data))
    assert value_in(elsewhere, checksum) == 1
    assert server.counts()["GET"] == 2


def test_a_damaged_object_is_a_corrupt_file_and_not_fetched_for_ever(
    places: Places, elsewhere: Store, server: BucketServer
) -> None:
    checksum = write_rows(places.bucket(), 1)
    served = server.folder / "bucket/checkpoint" / FILE
    data = bytearray(served.read_bytes())
    data[len(data) // 2] ^= 1
    served.write_bytes(data)
    with pytest.raises(CorruptFile):
        value_in(elsewhere, checksum)
    assert server.counts()["GET"] == 2


def test_a_missing_object_is_a_missing_file(places: Places) -> None:
    with pytest.raises(MissingFile, match="state/gone"):
        ArrowFile(places.bucket(), "state/gone", "0" * 16, mapped=True)


def test_a_deleted_file_leaves_the_cache(places: Places) -> None:
    bucket = places.bucket()
    write_rows(bucket, 1)
    bucket.delete([FILE])
    assert files_in(places.folder / "cache") == []


# -- the bound ---------------------------------------------------------------------------------------------------------


def fill(cache: Cache, name: str, size: int) -> None:
    spool = cache.spool()
    spool.write(memoryview(bytes(size)))
    spool.keep(name)


def test_what_was_used_least_recently_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)
    for used_at, name in enumerate(("a", "b", "c"), 1):
        fill(cache, name, 300)
        copy = cache.find(name)
        assert copy is not None
        os.utime(copy, (used_at, used_at))
    assert cache.find("a") is not None, "now it was used after the others"
    fill(cache, "d", 300)
    assert [name for name in "abcd" if cache.find(name) is not None] == ["a", "c", "d"]


def test_the_copy_just_made_stays_however_large(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)
    for name in ("a", "b"):
        fill(cache, name, 1000)
    assert cache.find("a") is None
    assert cache.find("b") is not None


def test_a_file_larger_than_the_cache_is_read_without_it(places: Places, server: BucketServer) -> None:
    checksum = write_rows(places.bucket(), 1)
    for bound in (10, 0):
        small = places.bucket(cache=Cache(places.folder / "small", bound))
        assert value_in(small, checksum) == 1
        write_rows(small, 2, f"state/{bound}")
        assert files_in(places.folder / "small") == []


@pytest.mark.parametrize("bound", [10, 0])
def test_batches_that_were_read_without_a_copy_take_no_memory(places: Places, bound: int) -> None:
    """D6: state of any size passes; its batches are kept until the epoch ends."""
    batch = pa.record_batch({"n": np.arange(100_000)})
    writer = ArrowFileWriter(places.bucket(), FILE, batch.schema, kind="state")
    for _ in range(5):
        writer.write(batch, np.zeros(batch.num_rows, np.int64))
    checksum = writer.close().checksum
    small = places.bucket(cache=Cache(places.folder / "small", bound))
    before = pa.total_allocated_bytes()
    with ArrowFile(small, FILE, checksum, mapped=True) as file:
        kept = [file.read_batch(number) for number in range(5)]
        assert pa.total_allocated_bytes() - before < batch.nbytes
    assert files_in(places.folder / "small") == []
    assert all(part.equals(batch) for part in kept)


def test_batches_stay_in_memory_when_the_disk_is_full(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """B12."""
    checksum = write_rows(places.bucket(), 1)
    small = places.bucket(cache=Cache(places.folder / "small", 0))
    monkeypatch.setattr(os, "write", full)
    assert value_in(small, checksum) == 1
    assert files_in(places.folder / "small") == []


def test_a_mapped_file_may_go(places: Places) -> None:
    bucket = places.bucket(cache=Cache(places.folder / "small", 3000))
    checksum = write_rows(bucket, 1)
    with ArrowFile(bucket, FILE, checksum, mapped=True) as file:
        for number in range(5):
            write_rows(bucket, number, f"state/{number}")
        assert file.read_batch(0).column(0)[0].as_py() == 1
    assert sum(path.stat().st_size for path in files_in(places.folder / "small")) <= 3000


def test_a_copy_that_goes_between_finding_and_mapping_is_fetched_again(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = places.bucket()
    checksum = write_rows(bucket, 1)
    real, removed = type(bucket).local_path, []

    def and_then_gone(self: Store, path: str) -> str | None:
        found = real(self, path)
        if not removed and found is not None:
            removed.append(Path(found).unlink())
        return found

    monkeypatch.setattr(type(bucket), "local_path", and_then_gone)
    assert value_in(bucket, checksum) == 1


def test_where_copies_go_as_quickly_as_they_come_files_are_read_without(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B12: many processes with a cache smaller than what they read."""
    bucket = places.bucket()
    checksum = write_rows(bucket, 1)
    real = type(bucket).local_path

    def and_then_gone(self: Store, path: str) -> str | None:
        found = real(self, path)
        Path(found or "").unlink()
        return found

    monkeypatch.setattr(type(bucket), "local_path", and_then_gone)
    assert value_in(bucket, checksum) == 1
    bucket.delete([FILE])
    with pytest.raises(MissingFile, match=FILE):
        value_in(bucket, checksum)


# -- what can go wrong -------------------------------------------------------------------------------------------------

_READER = f"""
import sys
from pathlib import Path
sys.path[:0] = [{str(ROOT)!r}]
from benchmarks.bucket import BucketServer
from penstock.store import open_store
print("asking", flush=True)
print(open_store("s3://bucket/checkpoint").local_path({FILE!r}), flush=True)
"""


def process(server: BucketServer, cache: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, **server.environment, "PENSTOCK_CACHE": str(cache)}
    return subprocess.Popen([sys.executable, "-c", _READER], env=environment, stdout=subprocess.PIPE, text=True)


def test_two_processes_share_copies_and_one_that_is_killed_leaves_no_half_copy(
    places: Places, server: BucketServer
) -> None:
    checksum = write_rows(places.bucket(), 1)
    asked, go_on = threading.Event(), threading.Event()

    def hold(request: object) -> None:
        asked.set()
        go_on.wait(30)

    server.fault = hold
    cache = places.folder / "shared"
    with process(server, cache) as killed:
        assert asked.wait(30), "the download did not begin"
        killed.send_signal(signal.SIGKILL)
    go_on.set()
    assert len(files_in(cache)) == 1, "its temporary file"
    server.requests.clear()
    with process(server, cache) as one, process(server, cache) as two:
        copies = {reader.communicate(timeout=60)[0].split()[-1] for reader in (one, two)}
    assert server.counts()["GET"] == 1
    [copy] = copies
    assert Path(copy).read_bytes() == (server.folder / "bucket/checkpoint" / FILE).read_bytes()
    server.requests.clear()
    assert value_in(places.bucket(cache=Cache(cache)), checksum) == 1
    assert server.requests == []


def test_temporary_files_of_killed_processes_go_when_they_are_old(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 1000)
    old, new = cache.spool(), cache.spool()
    for spool in (old, new):
        spool.file.close()
    os.utime(old.path, (0, time.time() - TEMP_S_MAX - 1))
    fill(cache, "a", 10)
    assert not old.path.exists()
    assert new.path.exists()


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_with_a_full_disk_files_are_read_without_a_copy(
    places: Places, elsewhere: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    checksum = write_rows(places.bucket(), 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        assert value_in(elsewhere, checksum) == 1
    assert files_in(places.folder / "elsewhere") == []


def test_a_full_disk_takes_the_copies_before_a_write_fails(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = places.bucket()
    write_rows(bucket, 1)
    writer = bucket.open_writer("state/2")
    real = os.write

    def full_while_there_are_copies(descriptor: int, data: memoryview) -> int:
        copies = [path for path in files_in(places.folder / "cache") if path.parent.name != "temp"]
        return full() if copies else real(descriptor, data)

    monkeypatch.setattr(os, "write", full_while_there_are_copies)
    writer.write(b"x")
    writer.close()
    assert bucket.read("state/2") == b"x"


def test_a_disk_too_full_for_a_new_file_gives_its_copies_up_first(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = places.bucket()
    write_rows(bucket, 1)
    real, copies = io.FileIO, files_in(places.folder / "cache")

    def opened(path: Path, mode: str) -> io.FileIO:
        if any(copy.exists() for copy in copies):
            full()
        return real(path, mode)

    monkeypatch.setattr("penstock.store.cache.io.FileIO", opened)
    write_rows(bucket, 2, "state/2")
    assert copies
    assert bucket.exists("state/2")


def test_a_disk_that_stays_full_is_a_storage_failure(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = places.bucket().open_writer("state/2")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StorageFailed, match="the disk is full"):
            writer.write(b"x")
        writer.abort()
    assert files_in(places.folder / "cache") == []


def test_a_cache_that_cannot_be_made_is_done_without_for_reading(places: Places, elsewhere: Store) -> None:
    checksum = write_rows(places.bucket(), 1)
    (places.folder / "elsewhere").write_text("a file is in the way")
    assert value_in(elsewhere, checksum) == 1
    with pytest.raises(StorageFailed, match="elsewhere"):
        elsewhere.open_writer("state/2")


def test_the_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.geteuid()
    for name in ("temp", "locks"):
        (tmp_path / "cache" / name).mkdir(parents=True)
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(StorageFailed, match="belongs to another user"):
        Cache(tmp_path / "cache").spool()
    assert Cache(tmp_path / "cache").fetch("a", lambda file, _: file.write(b"x") == 1) is None


def test_nobody_else_may_look_into_the_cache(tmp_path: Path) -> None:
    fill(Cache(tmp_path / "cache"), "a", 1)
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


def test_folder_and_bound_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "mine"))
    for text, bound in (("2 GB", 2_000_000_000), ("0", 0), ("123", 123)):
        monkeypatch.setenv("PENSTOCK_CACHE_BYTES", text)
        cache = Cache.from_environment()
        assert (cache._folder, cache._bytes_max) == (tmp_path / "mine", bound)
    monkeypatch.setenv("PENSTOCK_CACHE_BYTES", "much")
    with pytest.raises(ConfigError, match="PENSTOCK_CACHE_BYTES"):
        Cache.from_environment()


def test_a_download_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fails(file: io.FileIO, _: int) -> bool:
        file.write(b"half")
        raise MissingFile("gone")

    with pytest.raises(MissingFile):
        Cache(tmp_path).fetch("a", fails)
    assert files_in(tmp_path) == []
