"""What only object stores do: answers that get lost, requests that are counted."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.bucket import BucketServer
from penstock.errors import ConfigError, CorruptFile, MissingFile, StorageFailed
from penstock.store import AlreadyExists, Entry, FileReader, objectfiles, open_store
from penstock.store import object as objects
from penstock.store.arrowfile import ArrowFile, ArrowFileWriter
from penstock.store.base import Store
from tests.support.object_stores import Places, first, places, server

__all__ = ["places", "server"]

BATCH = pa.record_batch({"n": list(range(1000))})
GROUPS = np.zeros(1000, np.int64)


@pytest.fixture
def bucket(places: Places) -> objects.ObjectStore:
    return places.bucket()


def write(store: Store, path: str, data: bytes) -> None:
    writer = store.open_writer(path)
    writer.write(data)
    writer.close()


def bytes_at(reader: FileReader, offset: int, length: int) -> bytes:
    target = bytearray(length)
    reader.read_into(offset, memoryview(target))
    return bytes(target)


# -- creating ----------------------------------------------------------------------------------------------------------


def test_a_create_whose_answer_was_lost_is_not_taken_for_somebody_elses(
    bucket: objects.ObjectStore, server: BucketServer
) -> None:
    """C9: the client repeats the request and finds the name taken, by itself."""
    bucket.create("another", b"")
    server.requests.clear()
    server.fault = first("PUT", "lose")
    bucket.create("manifests/1.json", b"mine")
    assert server.counts()["PUT"] == 2
    server.fault = lambda _: None
    with pytest.raises(AlreadyExists):
        bucket.create("manifests/1.json", b"mine")
    assert bucket.read("manifests/1.json") == b"mine"


def test_a_store_that_overwrites_though_asked_not_to_is_refused(
    bucket: objects.ObjectStore, server: BucketServer
) -> None:
    """C9: two drivers could publish the same checkpoint there."""
    server.knows_conditions = False
    with pytest.raises(StorageFailed, match="If-None-Match"):
        bucket.create("generations/1.json", b"mine")


def test_that_a_store_refuses_is_asked_once(bucket: objects.ObjectStore, server: BucketServer) -> None:
    for number in range(5):
        bucket.create(f"manifests/{number}", b"")
    assert dict(server.counts()) == {"PUT": 6}


def test_a_file_whose_last_answer_was_lost_is_there(bucket: objects.ObjectStore, server: BucketServer) -> None:
    server.fault = first("PUT", "lose")
    write(bucket, "segments/1", b"small")
    assert bucket.read("segments/1") == b"small"


@pytest.mark.parametrize("fault", [None, "lose", "fail"])
def test_a_large_file_goes_in_parts(
    bucket: objects.ObjectStore, server: BucketServer, monkeypatch: pytest.MonkeyPatch, fault: str | None
) -> None:
    monkeypatch.setattr(objects, "PUT_BYTES_MAX", 1000)
    if fault is not None:
        server.fault = first("COMPLETE", fault)
    write(bucket, "segments/1", b"x" * 1001)
    server.fault = lambda _: None
    assert bucket.read("segments/1") == b"x" * 1001
    assert (server.counts()["PART"], server.counts()["PUT"]) == (1, 0)
    with pytest.raises(AlreadyExists):
        write(bucket, "segments/1", b"y" * 1001)
    assert bucket.read("segments/1") == b"x" * 1001


def test_failures_that_pass_are_not_noticed(bucket: objects.ObjectStore, server: BucketServer) -> None:
    for kind in ("PUT", "GET", "LIST", "BULK"):
        server.fault = first(kind, "fail")
        bucket.create(f"a/{kind}", b"1")
        assert bucket.read(f"a/{kind}") == b"1"
        assert bucket.list("a") == [Entry(f"a/{kind}", 1)]
        bucket.delete([f"a/{kind}"])


def test_an_object_store_that_fails_for_good_is_a_storage_failure_with_the_next_step(
    bucket: objects.ObjectStore, server: BucketServer
) -> None:
    bucket.create("a", b"1")
    server.fault = lambda _: "fail"
    for use in (
        lambda: bucket.create("b", b"2"),
        lambda: bucket.read("a"),
        lambda: bucket.exists("a"),
        lambda: bucket.list(""),
        lambda: bucket.delete(["a"]),
        lambda: bucket.open_reader("a"),
        lambda: bucket.local_path("state/a"),
    ):
        with pytest.raises(StorageFailed, match=r"s3://bucket/checkpoint(?s:.)*nothing published was lost"):
            use()


def test_a_writer_that_could_not_upload_leaves_no_local_file(places: Places, server: BucketServer) -> None:
    bucket = places.bucket()
    writer = bucket.open_writer("state/1")
    writer.write(b"x")
    server.fault = lambda _: "fail"
    with pytest.raises(StorageFailed):
        writer.close()
    writer.abort()
    assert [path for path in (places.folder / "cache").rglob("*") if path.is_file()] == []
    server.fault = lambda _: None
    write(bucket, "state/1", b"another attempt")


# -- reading -----------------------------------------------------------------------------------------------------------


def test_a_small_file_is_read_with_one_request(bucket: objects.ObjectStore, server: BucketServer) -> None:
    with_rows(bucket, "segments/1")
    server.requests.clear()
    with ArrowFile(bucket, "segments/1") as file:
        assert file.read_batch(0).equals(BATCH)
    assert dict(server.counts()) == {"GET": 1}


def test_who_reads_on_gets_several_pieces_with_one_request(bucket: objects.ObjectStore, server: BucketServer) -> None:
    data = os.urandom(6 << 20)
    write(bucket, "segments/1", data)
    server.requests.clear()
    reader = bucket.open_reader("segments/1")
    step = 512 << 10
    assert b"".join(bytes_at(reader, offset, step) for offset in range(0, len(data), step)) == data
    assert len(server.requests) <= 4
    reader.close()


def test_who_reads_here_and_there_gets_no_more_than_asked_for(
    bucket: objects.ObjectStore, server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    real = objectfiles.get_range

    def counted(client: object, key: str, where: str, begin: int, end: int) -> memoryview:
        asked.append(end - begin)
        return real(client, key, where, begin, end)

    monkeypatch.setattr(objectfiles, "get_range", counted)
    write(bucket, "segments/1", bytes(3 << 20))
    reader = bucket.open_reader("segments/1")
    for offset in (1 << 20, 2 << 20):
        bytes_at(reader, offset, 100)
    assert asked == [100, 100]


def test_an_empty_file_can_be_opened_and_has_nothing_to_read(bucket: objects.ObjectStore) -> None:
    bucket.create("empty", b"")
    reader = bucket.open_reader("empty")
    assert reader.size == 0
    with pytest.raises(CorruptFile, match="ends at byte 0"):
        bytes_at(reader, 0, 1)


def test_a_list_of_many_pages_is_whole(bucket: objects.ObjectStore, server: BucketServer) -> None:
    server.page = 3
    for number in range(10):
        bucket.create(f"a/{number}", b"")
    server.requests.clear()
    assert [entry.path for entry in bucket.list("a")] == [f"a/{number}" for number in range(10)]
    assert server.counts()["LIST"] == 4


def test_an_empty_object_with_the_name_of_a_folder_is_none_of_our_files(bucket: objects.ObjectStore) -> None:
    """Hadoop's connectors leave such objects."""
    entries = [Entry("source", 0), Entry("source/offsets", 0), Entry("source/offsets/0", 7), Entry("source/x", 0)]
    assert objects._without_folders(entries) == [Entry("source/offsets/0", 7), Entry("source/x", 0)]


def test_files_are_deleted_many_at_a_time(bucket: objects.ObjectStore, server: BucketServer) -> None:
    paths = [f"segments/{number}" for number in range(50)]
    for path in paths:
        bucket.create(path, b"x")
    server.requests.clear()
    bucket.delete(paths)
    assert dict(server.counts()) == {"BULK": 1}
    assert bucket.list("") == []


def test_nothing_is_asked_when_nothing_is_to_be_deleted(bucket: objects.ObjectStore, server: BucketServer) -> None:
    bucket.delete([])
    assert server.requests == []


def test_inside_one_bucket_no_bytes_travel_when_a_file_is_adopted(places: Places, server: BucketServer) -> None:
    origin, target = places.bucket("origin"), places.bucket("target")
    write(origin, "state/1", b"x" * 1000)
    server.requests.clear()
    target.adopt("state/1", origin)
    assert dict(server.counts()) == {"BEGIN": 1, "COPY": 1, "COMPLETE": 1}
    assert target.read("state/1") == b"x" * 1000


def test_a_file_too_large_for_the_stores_own_copy_is_read_and_written(
    places: Places, server: BucketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B14: S3 copies at most 5 GiB in one request."""
    monkeypatch.setattr(objects, "COPY_BYTES_MAX", 500)
    server.copy_bytes_max = 500
    origin, target = places.bucket("origin"), places.bucket("target")
    for path, size in (("state/1", 501), ("state/2", 500)):
        write(origin, path, b"x" * size)
        server.requests.clear()
        target.adopt(path, origin)
        assert target.read(path) == b"x" * size
        assert bool(server.asked("PUT")) == (size > 500)
        with pytest.raises(AlreadyExists):
            target.adopt(path, origin)


def test_a_copy_that_fails_for_another_reason_fails(places: Places, server: BucketServer) -> None:
    origin, target = places.bucket("origin"), places.bucket("target")
    write(origin, "state/1", b"x")
    server.copy_bytes_max = 0
    with pytest.raises(StorageFailed, match="state/1"):
        target.adopt("state/1", origin)
    assert not target.exists("state/1")


def test_a_failure_below_the_client_is_a_storage_failure(
    bucket: objects.ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B12: whatever the client passes on as it came."""

    def broken(*_: object, **__: object) -> None:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))

    monkeypatch.setattr("obstore.put", broken)
    with pytest.raises(StorageFailed, match="state/1: Connection reset"):
        bucket.create("state/1", b"x")


def test_a_copy_whose_answer_was_lost_can_be_made_again(places: Places, server: BucketServer) -> None:
    origin, target = places.bucket("origin"), places.bucket("target")
    origin.create("a", b"x")
    server.fault = first("COMPLETE", "lose")
    with pytest.raises(StorageFailed, match="do it again"):
        target.adopt("a", origin)
    with pytest.raises(AlreadyExists):
        target.adopt("a", origin)
    assert target.read("a") == b"x"


# -- opening -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def environment(server: BucketServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(objects, "_stores", {})
    monkeypatch.setattr(objects, "_clients", {})
    for name, value in {**server.environment, "PENSTOCK_CACHE": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)


def test_a_url_opens_one_handle_per_process(environment: None) -> None:
    store = open_store("s3://bucket/a/b")
    assert open_store("s3a://bucket/a/b/") is store
    assert store.url == "s3://bucket/a/b"
    store.create("x", b"1")
    assert open_store("s3://bucket/a").read("b/x") == b"1"
    assert open_store("s3://bucket").list("a/b") == [Entry("a/b/x", 1)]


def test_a_forked_process_is_told_so_where_it_would_wait_for_ever(
    environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threads of the client stay with the parent."""
    parent = open_store("s3://bucket/a")
    monkeypatch.setattr(os, "getpid", lambda: 1)
    for use in (lambda: open_store("s3://bucket/a"), lambda: parent.read("x"), lambda: parent.list("")):
        with pytest.raises(ConfigError, match="forked"):
            use()


@pytest.mark.parametrize("url", ["gs://bucket/x", "abfss://container@account.dfs.core.windows.net/x"])
def test_other_clouds_are_opened_by_their_urls(url: str, environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AZURE_SKIP_SIGNATURE", "true")
    assert open_store(url).url == url


def test_without_the_client_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "penstock.store.object")
    monkeypatch.delitem(sys.modules, "penstock.store.objectfiles")
    with pytest.raises(ConfigError, match=r"penstock\[object\]"):
        open_store("s3://bucket/x")


def test_a_local_checkpoint_loads_no_client(tmp_path: Path) -> None:
    """Spark forks its Python workers: nothing with threads of its own may be there before."""
    code = "import sys, penstock.spark.stage_job.worker as w; w.open_store('x'); sys.exit('obstore' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_missing_credentials_are_named_as_the_cause() -> None:
    from obstore.exceptions import PermissionDeniedError

    with pytest.raises(StorageFailed, match="credentials"), objectfiles.as_storage_failed("s3://bucket/x"):
        raise PermissionDeniedError("403")


def test_a_bucket_that_is_not_there_is_no_missing_file() -> None:
    from obstore.exceptions import GenericError

    for kind in (FileNotFoundError, GenericError):  # a list says it otherwise
        with (
            pytest.raises(StorageFailed, match="bucket does not exist"),
            objectfiles.as_storage_failed("s3://bucket/x"),
        ):
            raise kind("404 <Code>NoSuchBucket</Code>")
    with pytest.raises(MissingFile), objectfiles.as_storage_failed("s3://bucket/x"):
        raise FileNotFoundError("404 <Code>NoSuchKey</Code>")


def with_rows(store: Store, path: str, batch: pa.RecordBatch = BATCH) -> str:
    writer = ArrowFileWriter(store, path, batch.schema, kind="state")
    writer.write(batch, GROUPS)
    return writer.close().checksum
