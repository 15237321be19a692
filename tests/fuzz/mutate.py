"""Ways to damage a folder, by chance and by malice. Each is a function of the folder and of a random generator.

Damage by chance must be noticed, or do no harm. A forger knows the format: checksums are made to fit again, so what is
left to find it is whether numbers, names and offsets can be true.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import xxhash

from penstock.store.arrowindex import MAGIC, TRAILER, checksum_of, seal

HOSTILE_TEXTS = (
    "../../outside/x", "../../../outside/folder/x", "/etc/passwd", "..", ".", "", "a\0b", "\x1b[2J\x1b]0;owned\x07",
    "state/../../outside/x", "segments//x", "x" * 5000, "\u202egnp.exe", "manifests/0000000005.json", "source/metadata",
    "s3://key:secret@bucket/x?sig=abc", "\ud7ff", "{}", "db.db/words",
)  # fmt: skip
HOSTILE_NUMBERS = (
    -1, 0, 1, 2**15, 2**15 + 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63), -(2**70), 10**400, 1.5, 1e300,
)  # fmt: skip
HOSTILE_VALUES: tuple[Any, ...] = (*HOSTILE_TEXTS, *HOSTILE_NUMBERS, None, True, [], {}, [[]], {"a": {}}, [[0, 2**40]])
LINK_TARGETS = ("outside", "outside/folder", "outside/x", "outside/folder/x", "outside/manifests", "nothing", "case")


@dataclass(frozen=True, slots=True)
class Damage:
    """What was done; `forged`: checksums fit, so that another result than before is no fault."""

    what: str
    forged: bool = False


Mutation = Callable[["Folder", Random], Damage]


class Folder:
    """A copy of a template; `base` is what lies around it."""

    def __init__(self, path: Path, base: Path) -> None:
        self.path, self.base = path, base

    def files(self) -> list[Path]:
        return sorted(path for path in self.path.rglob("*") if path.is_file() and not path.is_symlink())

    def folders(self) -> list[Path]:
        """Below the folders that a user names: those themselves may be links of the user's."""
        roots = ("ckpt", "savepoint", "lake/db.db/words")
        found = [path for root in roots for path in (self.path / root).rglob("*")]
        return sorted(path for path in found if path.is_dir() and not path.is_symlink())

    def pick(self, chance: Random) -> Path:
        """A file; kinds that there are few of are as likely as others."""
        files = self.files()
        kinds = sorted({self._kind(path) for path in files})
        kind = chance.choice(kinds)
        return chance.choice([path for path in files if self._kind(path) == kind])

    def _kind(self, path: Path) -> str:
        return str(path.relative_to(self.path).parent)

    def name(self, path: Path) -> str:
        return str(path.relative_to(self.path))


def replace(path: Path, data: bytes) -> None:
    """Another file: templates may be linked to the one that was there."""
    path.unlink()
    path.write_bytes(data)


# -- by chance ---------------------------------------------------------------------------------------------------------


def flip(folder: Folder, chance: Random) -> Damage:
    path = folder.pick(chance)
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 1, 2, 16))):
        if data:
            data[chance.randrange(len(data))] ^= chance.randint(1, 255)
    replace(path, bytes(data))
    return Damage(f"flip {folder.name(path)}")


def cut(folder: Folder, chance: Random) -> Damage:
    path = folder.pick(chance)
    data = path.read_bytes()
    replace(path, data[: chance.randrange(len(data) + 1)])
    return Damage(f"cut {folder.name(path)}")


def grow(folder: Folder, chance: Random) -> Damage:
    path = folder.pick(chance)
    replace(path, path.read_bytes() + chance.randbytes(chance.choice((1, 8, 300))))
    return Damage(f"grow {folder.name(path)}")


def blank(folder: Folder, chance: Random) -> Damage:
    path = folder.pick(chance)
    data = bytearray(path.read_bytes())
    start = chance.randrange(len(data) + 1)
    end = min(len(data), start + chance.choice((1, 8, 64, 4096)))
    data[start:end] = bytes(end - start)
    replace(path, bytes(data))
    return Damage(f"blank {folder.name(path)}")


def swap(folder: Folder, chance: Random) -> Damage:
    one, two = folder.pick(chance), folder.pick(chance)
    first, second = one.read_bytes(), two.read_bytes()
    replace(one, second)
    replace(two, first)
    return Damage(f"swap {folder.name(one)} and {folder.name(two)}", forged=True)


def drop(folder: Folder, chance: Random) -> Damage:
    path = folder.pick(chance)
    path.unlink()
    return Damage(f"drop {folder.name(path)}", forged=True)


def renumber(folder: Folder, chance: Random) -> Damage:
    """A file under a name that means another number."""
    path = folder.pick(chance)
    digits = "".join(letter for letter in path.name if letter.isdigit())[:10] or "5"
    other = path.with_name(path.name.replace(digits, f"{chance.choice((0, 1, 4, 6, 7, 99, 9_999_999_999)):010d}", 1))
    if not other.exists():
        other.write_bytes(path.read_bytes())
    return Damage(f"renumber {folder.name(path)} as {other.name}", forged=True)


def huge(folder: Folder, chance: Random) -> Damage:
    """A file with a hole: it has a terabyte, and takes no space."""
    path = folder.pick(chance)
    replace(path, path.read_bytes())
    os.truncate(path, chance.choice((1 << 32, 1 << 40)))
    return Damage(f"huge {folder.name(path)}")


# -- foreign things ----------------------------------------------------------------------------------------------------


def link_file(folder: Folder, chance: Random) -> Damage:
    path = folder.pick(chance)
    path.unlink()
    target = folder.base / chance.choice(LINK_TARGETS)
    path.symlink_to(target if chance.random() < 0.5 else os.path.relpath(target, path.parent))
    return Damage(f"link {folder.name(path)} to {target}", forged=True)


def link_folder(folder: Folder, chance: Random) -> Damage:
    path = chance.choice(folder.folders())
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    target = chance.choice((folder.base / chance.choice(LINK_TARGETS), aside))
    path.symlink_to(target)
    return Damage(f"link folder {folder.name(path)} to {target}", forged=True)


def add_link(folder: Folder, chance: Random) -> Damage:
    parent = chance.choice(folder.folders())
    sibling = chance.choice([*parent.iterdir(), parent / "x"]).name
    path = parent / chance.choice((f"{sibling}x", "x", "0000000004-g1-s0-a1-0.arrow", ".tmp-1", "tag-x", "branch-x"))
    if not path.exists() and not path.is_symlink():
        path.symlink_to(folder.base / chance.choice(LINK_TARGETS))
    return Damage(f"add link {folder.name(path)}")


def odd_kind(folder: Folder, chance: Random) -> Damage:
    """A pipe or a folder in the place of a file."""
    path = folder.pick(chance)
    path.unlink()
    if chance.random() < 0.5:
        os.mkfifo(path)
    else:
        path.mkdir()
    return Damage(f"odd kind {folder.name(path)}", forged=True)


def odd_name(folder: Folder, chance: Random) -> Damage:
    parent = chance.choice(folder.folders())
    name = chance.choice(("\x1b[2J", "a\nb", "\udc80", "..x", ".", "²", "0000000005.json\n", "x" * 255)) or "x"
    path = parent / f"{name}{chance.choice(('', '.json', '.txt', '.arrow'))}"
    try:
        path.write_bytes(chance.randbytes(20))
    except OSError:
        return Damage("odd name, none")
    return Damage(f"odd name in {folder.name(parent)}")


# -- forged JSON -------------------------------------------------------------------------------------------------------


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield (*path, key)
        yield from leaves(part, (*path, key))


def forged_value(document: Any, chance: Random) -> Any:
    """The document with one value, or one key, replaced."""
    paths = list(leaves(document))
    if not paths:
        return document
    *above, last = chance.choice(paths)
    place = document
    for key in above:
        place = place[key]
    if isinstance(place, dict) and chance.random() < 0.15:
        place[str(chance.choice(HOSTILE_TEXTS))] = place.pop(last)
    elif isinstance(place, list) and chance.random() < 0.2:
        place.extend(place[last : last + 1] * chance.choice((1, 3, 1000)))
    elif isinstance(place[last], int) and not isinstance(place[last], bool) and chance.random() < 0.5:
        place[last] = place[last] + chance.choice((-1, 1, 2**20))
    else:
        place[last] = chance.choice(HOSTILE_VALUES)
    return document


def encode(document: Any) -> bytes:
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def nested(depth: int) -> bytes:
    return b'{"format":1,"x":' + b"[" * depth + b"]" * depth + b"}"


def sealed(body: bytes) -> bytes:
    return body + b"\n" + msgspec.json.encode({"xxh3_64": xxhash.xxh3_64_hexdigest(body)}) + b"\n"


def forge_manifest(folder: Folder, chance: Random) -> Damage:
    path = chance.choice(sorted((folder.path / "ckpt/manifests").glob("*.json")))
    if chance.random() < 0.05:
        replace(path, sealed(nested(chance.choice((10, 2000, 200_000)))))
        return Damage(f"nest {folder.name(path)}", forged=True)
    document = json.loads(path.read_bytes().split(b"\n")[0])
    for _ in range(chance.choice((1, 1, 2, 4))):
        document = forged_value(document, chance)
    replace(path, sealed(encode(document)))
    return Damage(f"forge {folder.name(path)}", forged=True)


def forge_json(folder: Folder, chance: Random) -> Damage:
    """Files without a seal: events, generations, snapshots, schemas, tags."""
    found = [
        path for path in folder.files() if path.suffix in {".jsonl", ".json", ""} and "manifests" not in path.parts
    ]
    chance.shuffle(found)
    for path in found:
        lines = path.read_bytes().split(b"\n")
        number = chance.randrange(len(lines))
        for text in (b"\n".join(lines), lines[number]):
            try:
                document = json.loads(text)
            except ValueError:
                continue
            made = encode(forged_value(document, chance)) if chance.random() < 0.95 else nested(3000)
            whole = made if text is not lines[number] else b"\n".join([*lines[:number], made, *lines[number + 1 :]])
            replace(path, whole)
            return Damage(f"forge {folder.name(path)}", forged=path.suffix != ".jsonl")
    return Damage("forge json, none")


def forge_attempts(folder: Folder, chance: Random) -> Damage:
    path = chance.choice(sorted((folder.path / "ckpt/attempts").rglob("*.txt")))
    names = [chance.choice(HOSTILE_TEXTS) for _ in range(chance.choice((1, 3, 200)))]
    names += ["snapshot/snapshot-1", "schema/schema-0", "snapshot/LATEST", "bucket-0/../../../../outside/x"]
    replace(path, "".join(f"{name}\n" for name in names).encode("utf-8", "surrogatepass"))
    return Damage(f"forge {folder.name(path)}")


# -- forged Arrow ------------------------------------------------------------------------------------------------------


def forge_arrow(folder: Folder, chance: Random) -> Damage:
    """A segment or a state file whose checksums fit, up to the manifest."""
    path = chance.choice(sorted((folder.path / "ckpt").rglob("*.arrow")))
    data = bytearray(path.read_bytes())
    length, _, magic = TRAILER.unpack(data[-TRAILER.size :])
    assert magic == MAGIC
    index = json.loads(data[-TRAILER.size - length : -TRAILER.size])
    stream = data[: -TRAILER.size - length]
    batch = chance.choice(index["batches"])
    kind = chance.choice(("offsets", "offsets", "body", "metadata", "metadata", "schema", "index", "sizes"))
    begin = batch["offset"]
    meta_end = begin + 8 + struct.unpack_from("<i", stream, begin + 4)[0]
    end = begin + batch["length"]
    if kind == "index":
        index = forged_value(index, chance)
    elif kind == "schema":
        _disturb(stream, 0, index["schema"]["length"], chance)
    elif kind == "metadata":
        _disturb(stream, begin, meta_end, chance)
    elif kind == "sizes":
        _claim(stream, meta_end, end, chance)
    else:
        _disturb(stream, meta_end, end, chance, words=kind == "offsets")
    _fit_checksums(index, stream)
    encoded = encode(index)
    replace(path, bytes(stream) + encoded + seal(encoded))
    _fit_manifests(folder, path, checksum_of(encoded))
    return Damage(f"forge {kind} of {folder.name(path)}", forged=True)


def _disturb(data: bytearray, begin: int, end: int, chance: Random, *, words: bool = False) -> None:
    for _ in range(chance.choice((1, 1, 3))):
        if words or chance.random() < 0.5:
            place = begin + 4 * chance.randrange(max(1, (end - begin) // 4))
            value = chance.choice((-1, 0, 1, 2**31 - 1, -(2**31), 2**20, chance.getrandbits(31)))
            if place + 4 <= end:
                struct.pack_into("<i", data, place, value)
        else:
            data[chance.randrange(begin, end)] = chance.getrandbits(8)


def _claim(data: bytearray, begin: int, end: int, chance: Random) -> None:
    """The uncompressed length in front of a compressed buffer."""
    place = begin + 8 * chance.randrange(max(1, min(40, (end - begin) // 8)))
    if place + 8 <= end:
        struct.pack_into("<q", data, place, chance.choice((-2, -1, 0, 1 << 20, 1 << 33, 1 << 45, 2**63 - 1)))


def _fit_checksums(index: dict[str, Any], stream: bytearray) -> None:
    try:
        index["schema"]["checksum"] = checksum_of(bytes(stream[: index["schema"]["length"]]))
        for info in index["batches"]:
            info["checksum"] = checksum_of(bytes(stream[info["offset"] : info["offset"] + info["length"]]))
    except (TypeError, KeyError, AttributeError):
        pass  # the index itself was forged beyond use


def _fit_manifests(folder: Folder, path: Path, checksum: str) -> None:
    name = str(path.relative_to(folder.path / "ckpt"))
    for manifest in (folder.path / "ckpt/manifests").glob("*.json"):
        document = json.loads(manifest.read_bytes().split(b"\n")[0])
        segments = [segment for edge in document["edges"].values() for segment in edge["segments"]]
        for entry in (*segments, *(file for files in document["state"].values() for file in files)):
            if entry["path"] == name:
                entry.update(checksum=checksum, bytes=path.stat().st_size)
        replace(manifest, sealed(encode(document)))


ANY: tuple[Mutation, ...] = (
    flip, flip, flip, cut, grow, blank, swap, drop, renumber, huge, link_file, link_folder, add_link, odd_kind,
    odd_name, forge_json, forge_json,
)  # fmt: skip
CHECKPOINT: tuple[Mutation, ...] = (*ANY, *[forge_manifest] * 6, *[forge_arrow] * 8, forge_attempts)
