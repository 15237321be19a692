"""The only place where names from files become paths.

A name is relative, uses ``/``, and stays inside its folder: no ``..``, no absolute path, no control characters, no more
than a file system takes. What a name meets on the disk is the business of `penstock.store.beneath`.
"""

from __future__ import annotations

import re

from penstock.errors import UnsafeName
from penstock.text import printable

TEMP_PREFIX = ".tmp-"

PATH_LENGTH_MAX = 1024
_PART_BYTES_MAX = 255
_PART = r"(?!\.{1,2}(?:/|\Z))[^/\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,255}"
_PATH = re.compile(rf"{_PART}(?:/{_PART})*")
_SHOWN = 100


def is_path(path: str) -> bool:
    """Whether a name stays inside the folder that it is taken relative to.

    >>> is_path("state/sum/1.arrow"), is_path("state/../../x"), is_path("/etc/passwd")
    (True, False, False)
    """
    if len(path) > PATH_LENGTH_MAX or _PATH.fullmatch(path) is None:
        return False
    return path.isascii() or all(len(part.encode()) <= _PART_BYTES_MAX for part in path.split("/"))


def check_path(path: str) -> str:
    """The path of a file inside a folder. Raises: `UnsafeName`."""
    if not is_path(path):
        raise unsafe_name(path)
    return path


def check_folder(prefix: str) -> str:
    """The path of a folder without its last ``/``; the store's own folder is ``""``. Raises: `UnsafeName`."""
    folder = prefix.removesuffix("/")
    return check_path(folder) if folder else folder


def check_name(name: str) -> str:
    """A file's own name, without folders. Raises: `UnsafeName`."""
    if "/" in name:
        raise unsafe_name(name)
    return check_path(name)


def unsafe_name(path: str, where: str = "its folder") -> UnsafeName:
    """The error of a name that must not become a path."""
    shown = printable(path if len(path) <= _SHOWN else f"{path[:_SHOWN]}…")
    return UnsafeName(
        f"'{shown}' is no path inside {where}",
        cause="a file of the folder was forged or damaged, or belongs to something else; nothing was read or changed",
        next_step="restore the folder from a copy that you trust, or an older checkpoint (restore=N)",
        path=shown,
    )


def is_a_link(path: str, root: str) -> UnsafeName:
    """The error of a symbolic link, or a device, where a file or a folder should be."""
    shown = printable(path)
    return UnsafeName(
        f"'{shown}' in {printable(root)} is a symbolic link, or neither a file nor a folder",
        cause="links inside a folder are not followed: they may lead anywhere; nothing was read or changed",
        next_step="put the file or folder itself in its place, or mount it there",
        path=shown,
    )
