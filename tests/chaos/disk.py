"""A small disk of its own for a folder, that can be filled to the last byte. Needs the right to mount."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SIZE_MB = 128
"""Several times what a run leaves behind."""
_BLOCK = bytes(1 << 20)


class Disk:
    """A file system in memory, mounted at `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "tmpfs", str(folder)]
        try:
            self.is_mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            self.is_mounted = False

    @contextmanager
    def full(self) -> Iterator[None]:
        """Not a byte is free meanwhile."""
        filler = self._folder / ".filler"
        try:
            with filler.open("wb", buffering=0) as file:
                for block in (_BLOCK, _BLOCK[:4096], _BLOCK[:1]):
                    _write_until_full(file.write, block)
            yield
        finally:
            filler.unlink()

    def remove(self, *, keep: bool) -> None:
        """Gives the disk back; with `keep`, what was on it stays in the folder."""
        if not self.is_mounted:
            return
        kept = self._folder.with_name(f"{self._folder.name}.kept")
        if keep:
            shutil.copytree(self._folder, kept, symlinks=True)
        subprocess.run(["umount", "--lazy", str(self._folder)], check=True)
        if keep:
            self._folder.rmdir()
            kept.rename(self._folder)


def _write_until_full(write, block: bytes) -> None:
    try:
        while write(block):
            pass
    except OSError:
        return
