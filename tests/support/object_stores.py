"""Stores for the tests of what every store must do: a folder, memory, and object stores in memory and over HTTP."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from obstore.store import MemoryStore as MemoryBucket
from obstore.store import S3Store

from benchmarks.bucket import BucketServer
from penstock.store import LocalStore, MemoryStore, Store
from penstock.store import object as objects
from penstock.store.cache import Cache
from penstock.store.object import ObjectStore

KINDS = ("local", "memory", "bucket-in-memory", "bucket-over-http")
_numbers = itertools.count()


class Places:
    """Makes stores of any kind that share nothing; those of one object store share its buckets."""

    def __init__(self, folder: Path, server: BucketServer) -> None:
        self.folder, self.server = folder, server
        self.cache = Cache(folder / "cache")
        self._in_memory = MemoryBucket()

    def make(self, kind: str, name: str = "checkpoint") -> Store:
        match kind:
            case "local":
                return LocalStore(self.folder / name)
            case "memory":
                return MemoryStore()
            case "bucket-in-memory":
                return self._opened(ObjectStore("s3://in-memory", name, self._in_memory, self.cache))
            case _:
                return self.bucket(name)

    def bucket(self, name: str = "checkpoint", cache: Cache | None = None) -> ObjectStore:
        """A folder in this test's own bucket on the server."""
        return self._opened(ObjectStore("s3://bucket", name, self.client(), cache or self.cache))

    def client(self) -> S3Store:
        """Repeats come quickly."""
        return S3Store(
            "bucket",
            endpoint=self.server.endpoint,
            access_key_id="any",
            secret_access_key="any",
            region="us-east-1",
            copy_if_not_exists="multipart",
            client_options={"allow_http": True},
            retry_config={
                "max_retries": 3,
                "backoff": {"init_backoff": timedelta(milliseconds=5), "max_backoff": timedelta(milliseconds=20)},
            },
        )

    @staticmethod
    def _opened(store: ObjectStore) -> ObjectStore:
        """As if it had been opened by its URL."""
        objects._stores[os.getpid(), store.url] = store
        return store


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BucketServer]:
    running = BucketServer(tmp_path / "served")
    yield running
    running.close()


@pytest.fixture
def places(tmp_path: Path, server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.setattr(objects, "_stores", {})
    return Places(tmp_path, server)


def first(kind: str, fault: str) -> Callable[[object], str | None]:
    """Of all requests of a kind the first one goes wrong."""
    left = [fault]
    return lambda request: left.pop() if left and request.kind == kind else None
