"""Manifests of a table may come from anybody: none takes the driver's stack, memory or time."""

from __future__ import annotations

import io
import json
import lzma
from pathlib import Path
from typing import Any

import fastavro
import pytest

from penstock.errors import CorruptFile
from penstock.sinks.paimon.avro import require_bounded
from penstock.sinks.paimon.read import listed_files
from penstock.sinks.paimon.sink import Paimon
from tests.support import avro_bombs
from tests.support.tables import SCHEMA, commit, epoch

CODECS = ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"]


def encoded(codec: str, words: list[str]) -> bytes:
    schema = {"type": "record", "name": "r", "fields": [{"name": "word", "type": "string"}]}
    out = io.BytesIO()
    fastavro.writer(out, schema, [{"word": word} for word in words], codec=codec)
    return out.getvalue()


def only(kind: Any, **more: Any) -> bytes:
    return avro_bombs.container({"type": "record", "name": "r", "fields": [{"name": "a", "type": kind}], **more})


@pytest.mark.parametrize("name", sorted(avro_bombs.BOMBS))
def test_a_manifest_that_breaks_its_decoder_is_refused(name: str) -> None:
    with pytest.raises(CorruptFile):
        require_bounded(avro_bombs.BOMBS[name](), "manifest/x")


@pytest.mark.parametrize("codec", CODECS)
def test_a_small_file_that_expands_to_gigabytes_is_refused(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.sinks.paimon.avro.EXPANDED_BYTES_MAX", 3 << 20)
    require_bounded(encoded(codec, ["a" * (1 << 20), "b" * (1 << 20)]), "manifest/x")
    with pytest.raises(CorruptFile, match="expands"):
        require_bounded(encoded(codec, ["a" * (1 << 20)] * 4), "manifest/x")


def test_xz_in_several_streams_is_expanded_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.sinks.paimon.avro.EXPANDED_BYTES_MAX", 3 << 20)
    body = b"".join(lzma.compress(bytes(2 << 20)) for _ in range(2))
    with pytest.raises(CorruptFile, match="expands"):
        require_bounded(avro_bombs.container("string", body=body, codec=b"xz"), "manifest/x")


@pytest.mark.parametrize(
    "kind",
    [
        "long",
        ["null", "string"],
        {"type": "array", "items": ["null", {"type": "record", "name": "s", "fields": [{"name": "b", "type": "int"}]}]},
        {"type": "map", "values": "bytes"},
        {"type": "fixed", "name": "f", "size": 4},
        ["null", {"type": "long", "logicalType": "timestamp-millis"}],
    ],
)
def test_types_whose_values_take_bytes_are_read(kind: Any) -> None:
    require_bounded(only(kind), "manifest/x")


def test_a_named_type_may_be_used_again() -> None:
    stats = {"type": "record", "name": "stats", "fields": [{"name": "b", "type": "int"}]}
    fields = [{"name": "one", "type": stats}, {"name": "two", "type": ["null", "stats"]}]
    require_bounded(avro_bombs.container({"type": "record", "name": "r", "fields": fields}), "manifest/x")


@pytest.mark.parametrize("name", sorted(avro_bombs.BOMBS))
def test_a_table_with_such_a_manifest_is_told_with_a_code(name: str, tmp_path: Path) -> None:
    sink = Paimon(str(tmp_path / "lake"), "db.words")
    sink.check(SCHEMA)
    committer = sink.open_committer("penstock-me-words")
    commit(committer, 1, epoch(sink, 1))
    assert listed_files(sink.warehouse, "db.words")
    root = tmp_path / "lake/db.db/words"
    snapshot = json.loads((root / "snapshot/snapshot-1").read_text())
    (root / "manifest" / snapshot["deltaManifestList"]).write_bytes(avro_bombs.BOMBS[name]())
    with pytest.raises(CorruptFile):
        sink.open_committer("penstock-me-words").commits(None, 10)
