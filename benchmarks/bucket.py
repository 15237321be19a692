"""An object store over a folder, for tests and benchmarks: as much of S3 as Penstock and its client use.

An object is a file of the same name, so Spark may reach the same objects through its local file system. Any signature
is accepted. Faults are ordered beforehand: an answer that gets lost, a failure, a delay. ``python -m benchmarks.bucket
FOLDER LATENCY_MS`` runs it in a process of its own and prints where; for each line ``count`` it prints how many
requests there were since the last one.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

_META = "x-amz-meta-"
_SIDE = ".bucket-side"
"""Beside the buckets: user metadata of objects, and parts of uploads that are not complete."""


class Request(NamedTuple):
    """What a client asked for: the method (copies and parts by their own words), and the key."""

    kind: str
    key: str


Fault = Callable[[Request], str | None]
"""Says what goes wrong with a request: ``fail`` (nothing is done, 500), ``lose`` (done, no answer), or nothing."""


def environment(endpoint: str) -> dict[str, str]:
    """What a client needs to find a server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_REGION": "us-east-1",
    }


class Answer(NamedTuple):
    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


class BucketServer:
    """Serves every bucket in a folder until it is closed; buckets are made by their first object."""

    def __init__(self, folder: Path, latency_s: float = 0.0, page: int = 1000) -> None:
        self.folder, self.latency_s, self.page = folder, latency_s, page
        self.fault: Fault = lambda _: None
        self.knows_conditions = True
        self.copy_bytes_max = 5 << 30
        self.requests: list[Request] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.bucket = self
        threading.Thread(target=self._server.serve_forever, args=(0.02,), name="bucket", daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        return environment(self.endpoint)

    def counts(self) -> Counter[str]:
        return Counter(request.kind for request in self.requests)

    def asked(self, kind: str, part: str = "") -> list[str]:
        """Keys that hold `part`, of requests of this kind."""
        return [request.key for request in self.requests if request.kind == kind and part in request.key]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    # -- what each request does; all under one lock, so that each is atomic ------------------------------------------

    def answer(self, kind: str, bucket: str, key: str, query: dict[str, str], headers: Any, body: bytes) -> Answer:
        with self._lock:
            handlers: dict[str, Callable[[], Answer]] = {
                "PUT": lambda: self._put(bucket, key, headers, body),
                "GET": lambda: self._get(bucket, key, headers),
                "HEAD": lambda: self._get(bucket, key, headers),
                "DELETE": lambda: self._delete(bucket, key),
                "LIST": lambda: self._list(bucket, query),
                "BULK": lambda: self._bulk(bucket, body),
                "BEGIN": lambda: self._begin(key, headers),
                "PART": lambda: self._part(query, body),
                "COPY": lambda: self._copy_part(query, headers),
                "COMPLETE": lambda: self._complete(bucket, key, query, headers, body),
                "ABORT": lambda: self._abort(query),
            }
            return handlers[kind]()

    def _path(self, bucket: str, key: str) -> Path:
        return self.folder / bucket / key

    def _side(self, bucket: str, key: str) -> Path:
        return self.folder / _SIDE / hashlib.sha256(f"{bucket}/{key}".encode()).hexdigest()

    def _upload(self, query: dict[str, str]) -> Path:
        return self.folder / _SIDE / f"upload-{query['uploadId']}"

    def _put(self, bucket: str, key: str, headers: Any, body: bytes) -> Answer:
        path = self._path(bucket, key)
        if self.knows_conditions and headers.get("if-none-match") == "*" and path.is_file():
            return Answer(412, _error("PreconditionFailed"))
        meta = {name.lower(): value for name, value in headers.items() if name.lower().startswith(_META)}
        return self._store(bucket, key, body, meta)

    def _store(self, bucket: str, key: str, body: bytes, meta: dict[str, str]) -> Answer:
        path, side = self._path(bucket, key), self._side(bucket, key)
        for folder in (path.parent, side.parent):
            folder.mkdir(parents=True, exist_ok=True)
        temp = side.with_suffix(".new")
        temp.write_bytes(body)
        side.write_text(json.dumps(meta))
        temp.rename(path)
        return Answer(200, headers=(("ETag", _etag(path)),))

    def _get(self, bucket: str, key: str, headers: Any) -> Answer:
        path = self._path(bucket, key)
        if not path.is_file():
            return Answer(404, _error("NoSuchKey"))
        data, side = path.read_bytes(), self._side(bucket, key)
        meta = json.loads(side.read_text()) if side.exists() else {}
        common = (("ETag", _etag(path)), ("Last-Modified", _http_time(path)), ("Accept-Ranges", "bytes"), *meta.items())
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", headers.get("range") or "")
        if wanted is None:
            return Answer(200, data, common)
        first, last = wanted[1], wanted[2]
        begin = int(first) if first else max(0, len(data) - int(last))
        end = min(len(data), int(last) + 1) if first and last else len(data)
        if begin >= len(data):
            return Answer(416, _error("InvalidRange"))
        return Answer(206, data[begin:end], (*common, ("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")))

    def _delete(self, bucket: str, key: str) -> Answer:
        self._path(bucket, key).unlink(missing_ok=True)
        self._side(bucket, key).unlink(missing_ok=True)
        return Answer(204)

    def _bulk(self, bucket: str, body: bytes) -> Answer:
        keys = [node.text or "" for node in ET.fromstring(body).iter() if node.tag.endswith("Key")]
        for key in keys:
            self._delete(bucket, key)
        deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        return Answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def _list(self, bucket: str, query: dict[str, str]) -> Answer:
        root, prefix = self.folder / bucket, query.get("prefix", "")
        after = query.get("continuation-token") or query.get("start-after") or ""
        # A file may be renamed or removed while we look: Spark does that beside us.
        found = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
        keys = [key for key in found if key.startswith(prefix) and key > after]
        page, more = keys[: self.page], len(keys) > self.page
        rows = "".join(_row(root / key, key) for key in page)
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        head = f"<KeyCount>{len(page)}</KeyCount><IsTruncated>{str(more).lower()}</IsTruncated>{token}"
        return Answer(200, f"<ListBucketResult><Name>{bucket}</Name>{head}{rows}</ListBucketResult>".encode())

    def _begin(self, key: str, headers: Any) -> Answer:
        upload = uuid.uuid4().hex
        folder = self._upload({"uploadId": upload})
        folder.mkdir(parents=True)
        meta = {name.lower(): value for name, value in headers.items() if name.lower().startswith(_META)}
        (folder / "meta").write_text(json.dumps(meta))
        tags = f"<Key>{escape(key)}</Key><UploadId>{upload}</UploadId>"
        return Answer(200, f"<InitiateMultipartUploadResult>{tags}</InitiateMultipartUploadResult>".encode())

    def _part(self, query: dict[str, str], body: bytes) -> Answer:
        path = self._upload(query) / f"{int(query['partNumber']):06d}"
        path.write_bytes(body)
        return Answer(200, headers=(("ETag", _etag(path)),))

    def _copy_part(self, query: dict[str, str], headers: Any) -> Answer:
        bucket, _, key = unquote(headers["x-amz-copy-source"]).lstrip("/").partition("/")
        source = self._path(bucket, key)
        if not source.is_file():
            return Answer(404, _error("NoSuchKey"))
        if source.stat().st_size > self.copy_bytes_max:
            return Answer(400, _error("InvalidRequest"))
        self._part(query, source.read_bytes())
        return Answer(200, f"<CopyPartResult><ETag>{escape(_etag(source))}</ETag></CopyPartResult>".encode())

    def _abort(self, query: dict[str, str]) -> Answer:
        shutil.rmtree(self._upload(query), ignore_errors=True)
        return Answer(204)

    def _complete(self, bucket: str, key: str, query: dict[str, str], headers: Any, body: bytes) -> Answer:
        folder = self._upload(query)
        if not folder.is_dir():
            return Answer(404, _error("NoSuchUpload"))
        if headers.get("if-none-match") == "*" and self._path(bucket, key).is_file():
            return Answer(412, _error("PreconditionFailed"))
        numbers = [node.text for node in ET.fromstring(body).iter() if node.tag.endswith("PartNumber")]
        data = b"".join((folder / f"{int(number or 0):06d}").read_bytes() for number in numbers)
        self._store(bucket, key, data, json.loads((folder / "meta").read_text()))
        shutil.rmtree(folder)
        tags = f"<Key>{escape(key)}</Key><ETag>{escape(_etag(self._path(bucket, key)))}</ETag>"
        return Answer(200, f"<CompleteMultipartUploadResult>{tags}</CompleteMultipartUploadResult>".encode())


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    bucket: BucketServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        assert isinstance(self.server, _Server)
        bucket = self.server.bucket
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        name, _, key = unquote(parts.path).lstrip("/").partition("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kind = self._kind(query)
        request = Request(kind, query.get("prefix", "") if kind == "LIST" else key)
        bucket.requests.append(request)
        time.sleep(bucket.latency_s)
        fault = bucket.fault(request)
        answer = Answer(500, _error("InternalError"))
        if fault != "fail":
            answer = bucket.answer(kind, name, key, query, self.headers, body)
        if fault == "lose":
            self.close_connection = True
            return
        self._send(answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 - the names that the base class calls

    def _kind(self, query: dict[str, str]) -> str:
        if self.command == "POST":
            return "BULK" if "delete" in query else "BEGIN" if "uploads" in query else "COMPLETE"
        if "uploadId" in query:
            return "ABORT" if self.command == "DELETE" else "COPY" if "x-amz-copy-source" in self.headers else "PART"
        return "LIST" if "list-type" in query else self.command

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Says nothing."""


def _etag(path: Path) -> str:
    info = path.stat()
    return f'"{info.st_mtime_ns:x}-{info.st_size:x}"'


def _http_time(path: Path) -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(path.stat().st_mtime))


def _row(path: Path, key: str) -> str:
    try:
        info, etag = path.stat(), _etag(path)
    except FileNotFoundError:
        return ""
    modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(info.st_mtime))
    tags = f"<Key>{escape(key)}</Key><LastModified>{modified}</LastModified><ETag>{escape(etag)}</ETag>"
    return f"<Contents>{tags}<Size>{info.st_size}</Size></Contents>"


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()


@contextmanager
def serving(folder: Path, latency_s: float = 0.0) -> Iterator[BucketServer]:
    server = BucketServer(folder, latency_s)
    try:
        yield server
    finally:
        server.close()


class BucketProcess:
    """A server in a process of its own, so that what it does costs the measured process nothing."""

    def __init__(self, folder: Path, latency_s: float) -> None:
        command = [sys.executable, "-m", "benchmarks.bucket", str(folder), str(latency_s * 1000)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.environment = environment(self._answer())

    def counts(self) -> Counter[str]:
        """Requests by their kind since the last call."""
        assert self._process.stdin is not None
        self._process.stdin.write("count\n")
        self._process.stdin.flush()
        return Counter(json.loads(self._answer()))

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


if __name__ == "__main__":
    with serving(Path(sys.argv[1]), float(sys.argv[2]) / 1000) as running:
        print(running.endpoint, flush=True)
        while (line := sys.stdin.readline()) == "count\n":  # until whoever started it is gone
            print(json.dumps(running.counts()), flush=True)
            running.requests.clear()
