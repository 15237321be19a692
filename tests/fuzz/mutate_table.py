"""Ways to forge a table: what its snapshots, manifests and options name."""

from __future__ import annotations

import io
import json
from random import Random
from typing import Any

import fastavro

from tests.fuzz.mutate import (
    ANY,
    HOSTILE_TEXTS,
    Damage,
    Folder,
    Mutation,
    encode,
    forge_attempts,
    forge_manifest,
    replace,
)
from tests.support.avro_bombs import BOMBS


def forge_avro(folder: Folder, chance: Random) -> Damage:
    """A list of manifests or a manifest, with other names, numbers and partitions."""
    path = chance.choice(sorted((folder.path / "lake/db.db/words/manifest").iterdir()))
    reader = fastavro.reader(io.BytesIO(path.read_bytes()))
    schema, records = reader.writer_schema, list(reader)
    if records:
        _forge_record(chance.choice(records), chance)
    out = io.BytesIO()
    try:
        fastavro.writer(out, schema, records, codec=chance.choice(("null", "deflate", "zstandard")))
    except Exception:  # noqa: BLE001 - a value that the format cannot hold
        return Damage("forge avro, none")
    replace(path, out.getvalue())
    return Damage(f"forge {folder.name(path)}", forged=True)


def _forge_record(record: dict[str, Any], chance: Random) -> None:
    place = record
    while True:
        inner = [key for key, value in place.items() if isinstance(value, dict)]
        if not inner or chance.random() < 0.4:
            break
        place = place[chance.choice(inner)]
    names = [key for key, value in place.items() if isinstance(value, str)]
    key = chance.choice(names) if names and chance.random() < 0.6 else chance.choice(list(place))
    old = place[key]
    if isinstance(old, str):
        place[key] = chance.choice((*HOSTILE_TEXTS, f"../../../../outside/{'x'}", f"../../{old}", f"{old}/../../x"))
    elif isinstance(old, bytes):
        place[key] = chance.randbytes(chance.choice((0, 4, 8, len(old))))
    elif isinstance(old, list):
        place[key] = ["../../../outside/x", "../../../../outside/folder/x"]
    elif isinstance(old, int):
        place[key] = chance.choice((-1, 0, 1, 2**31 - 1, 2**40, -(2**31)))
    else:
        place[key] = chance.choice(HOSTILE_TEXTS)


def bomb_avro(folder: Folder, chance: Random) -> Damage:
    """A list of manifests or a manifest that would take a decoder's stack, memory or time."""
    path = chance.choice(sorted((folder.path / "lake/db.db/words/manifest").iterdir()))
    name = chance.choice(sorted(BOMBS))
    replace(path, BOMBS[name]())
    return Damage(f"{name} as {folder.name(path)}", forged=True)


def forge_snapshot(folder: Folder, chance: Random) -> Damage:
    """Names in a snapshot, which are paths to a reader."""
    path = chance.choice(sorted((folder.path / "lake/db.db/words/snapshot").glob("snapshot-*")))
    document = json.loads(path.read_bytes())
    key = chance.choice(
        ("baseManifestList", "deltaManifestList", "changelogManifestList", "statistics", "indexManifest")
    )
    document[key] = chance.choice((*HOSTILE_TEXTS, "../../../../outside/x", "../snapshot/snapshot-1"))
    replace(path, encode(document))
    return Damage(f"forge {key} of {folder.name(path)}", forged=True)


def forge_options(folder: Folder, chance: Random) -> Damage:
    """Options of the table say where files are."""
    path = folder.path / "lake/db.db/words/schema/schema-0"
    document = json.loads(path.read_bytes())
    outside = str(folder.base / "outside")
    name, value = chance.choice(
        (
            ("data-file.external-paths", f"file://{outside}"),
            ("data-file.path-directory", "../../../../outside"),
            ("data-file.prefix", "../../../../outside/"),
            ("global-index.external-path", outside),
            ("branch", "../../../outside"),
            ("path", outside),
            ("bucket", "99999999"),
            ("target-file-size", "-1"),
            ("snapshot.num-retained.min", "x"),
            ("manifest.target-file-size", "1 b"),
            ("commit.user-prefix", "\x1b[2J"),
        )
    )
    document["options"][name] = value
    replace(path, encode(document))
    return Damage(f"option {name}", forged=True)


TABLE: tuple[Mutation, ...] = (
    *ANY, *[forge_avro] * 6, bomb_avro, *[forge_snapshot] * 4, *[forge_options] * 2, *[forge_manifest] * 2,
    *[forge_attempts] * 2,
)  # fmt: skip
