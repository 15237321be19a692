"""Names inside a store: relative, with ``/``, never leading out of it."""

from __future__ import annotations

TEMP_PREFIX = ".tmp-"


def check_path(path: str) -> str:
    """The path of a file, asserted to stay inside the store."""
    parts = path.split("/")
    assert not {"", ".", ".."} & set(parts), f"{path!r} is not a relative path inside the store"
    assert "\0" not in path, f"{path!r} contains a zero byte"
    return path


def check_folder(prefix: str) -> str:
    """The path of a folder without its last ``/``; the store's own folder is ``""``."""
    folder = prefix.removesuffix("/")
    return check_path(folder) if folder else folder
