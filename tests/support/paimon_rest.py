"""A REST catalog of Paimon tables on loopback: as much as a sink needs. The server decides which snapshot counts."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from pypaimon import CatalogFactory
from pypaimon.common.json_util import JSON
from pypaimon.schema.schema import Schema

TOKEN = "a-secret-token"


class RestCatalog:
    """Tables in a local folder; snapshots appear by this server only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commits = 0
        self.fail_after_commit = False
        self._files = CatalogFactory.create({"warehouse": str(folder)})
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.catalog = self
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def options(self) -> dict[str, str]:
        """What a client is given."""
        uri = f"http://127.0.0.1:{self._server.server_address[1]}"
        return {"metastore": "rest", "uri": uri, "token.provider": "bear", "token": TOKEN}

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        parts = [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]
        if parts[-1] == "config":
            return 200, {"defaults": {"prefix": "lake"}, "overrides": {}}
        match method, parts[2:]:
            case "POST", ["databases"]:
                self._files.create_database(body["name"], True)
                return 200, {}
            case "POST", ["databases", database, "tables"]:
                return self._create(f"{database}.{body['identifier']['object']}", body["schema"])
            case "GET", ["databases", database, "tables", table]:
                return self._table(database, table)
            case "GET", ["databases", database, "tables", table, "snapshot"]:
                return self._snapshot(database, table)
            case "POST", ["databases", database, "tables", table, "commit"]:
                return self._commit(database, table, body["snapshot"])
        return 404, {"message": f"no {method} {path}", "code": 404, "resourceType": "TABLE", "resourceName": path}

    def _create(self, name: str, schema: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self._files.create_table(name, JSON.from_json(json.dumps(schema), Schema), True)
        return 200, {}

    def _root(self, database: str, table: str) -> Path:
        return self.folder / f"{database}.db" / table

    def _table(self, database: str, table: str) -> tuple[int, dict[str, Any]]:
        schemas = sorted((self._root(database, table) / "schema").glob("schema-*"))
        if not schemas:
            return 404, {"message": "no table", "code": 404, "resourceType": "TABLE", "resourceName": table}
        schema = json.loads(schemas[-1].read_text())
        told = {name: schema[name] for name in ("fields", "partitionKeys", "primaryKeys", "options")}
        told["comment"] = schema.get("comment")
        return 200, {
            "id": "table-1", "name": table, "path": str(self._root(database, table)), "isExternal": False,
            "schemaId": schema["id"], "schema": told,
        }  # fmt: skip

    def _numbers(self, database: str, table: str) -> list[int]:
        return sorted(int(path.name[9:]) for path in (self._root(database, table) / "snapshot").glob("snapshot-*"))

    def _snapshot(self, database: str, table: str) -> tuple[int, dict[str, Any]]:
        numbers = self._numbers(database, table)
        if not numbers:
            return 404, {"message": "none", "code": 404, "resourceType": "SNAPSHOT", "resourceName": table}
        text = (self._root(database, table) / "snapshot" / f"snapshot-{numbers[-1]}").read_text()
        zeros = dict.fromkeys(("recordCount", "fileSizeInBytes", "fileCount", "lastFileCreationTime"), 0)
        return 200, {"snapshot": {"snapshot": json.loads(text), **zeros}}

    def _commit(self, database: str, table: str, snapshot: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with self._lock:
            numbers = self._numbers(database, table)
            if int(snapshot["id"]) != (numbers[-1] if numbers else 0) + 1:
                return 200, {"success": False}
            path = self._root(database, table) / "snapshot" / f"snapshot-{snapshot['id']}"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(snapshot))
            self.commits += 1
        if self.fail_after_commit:
            self.fail_after_commit = False
            return 400, {"message": "the answer is lost", "code": 400, "resourceType": "TABLE", "resourceName": table}
        return 200, {"success": True}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    catalog: RestCatalog


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}") if length else {}
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            status, answer = 401, {"message": "who are you", "code": 401, "resourceType": "", "resourceName": ""}
        else:
            status, answer = self.server.catalog.answer(self.command, self.path, body)
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = _serve  # noqa: N815 - names of the standard library

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the standard library
        """Nothing is printed."""
