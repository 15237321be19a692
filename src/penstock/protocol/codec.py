"""Manifests as bytes: one line of JSON, and a second line with its checksum. Unknown fields are refused."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import xxhash

from penstock.protocol.manifest import FORMAT_VERSION, Manifest, Version
from penstock.protocol.trust import why_not

# Texts that are not UTF-8 and structures that are nested without end are no mistakes of the decoder's grammar.
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_manifest_decoder = msgspec.json.Decoder(Manifest)


class _Version(msgspec.Struct):
    format: Version


class _Seal(msgspec.Struct, forbid_unknown_fields=True):
    xxh3_64: str


@dataclass(frozen=True, slots=True)
class UnreadableManifest:
    """The bytes are not a manifest as it was written; `why` says what differs."""

    why: str


@dataclass(frozen=True, slots=True)
class TooNew:
    """A newer format than this library knows."""

    format: int


def encode_manifest(manifest: Manifest) -> bytes:
    body = msgspec.json.encode(manifest)
    seal = msgspec.json.encode(_Seal(xxhash.xxh3_64_hexdigest(body)))
    return b"".join((body, b"\n", seal, b"\n"))  # megabytes, copied once


def decode_manifest(data: bytes) -> Manifest | UnreadableManifest | TooNew:
    body, _, rest = data.partition(b"\n")
    try:
        seal = msgspec.json.decode(rest, type=_Seal)
    except _UNDECODABLE as error:
        return UnreadableManifest(f"its checksum line cannot be read ({error}); {len(data)} bytes in all")
    found = xxhash.xxh3_64_hexdigest(body)
    if found != seal.xxh3_64:
        return UnreadableManifest(
            f"checksum {found} of its {len(body)} bytes is not the {seal.xxh3_64} that was written"
        )
    try:
        version = msgspec.json.decode(body, type=_Version).format
        if version > FORMAT_VERSION:
            return TooNew(version)
        manifest = _manifest_decoder.decode(body)
    except _UNDECODABLE as error:
        return UnreadableManifest(str(error))
    fault = why_not(manifest)
    return manifest if fault is None else UnreadableManifest(fault)
