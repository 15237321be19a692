"""A checkpoint directory as processes on several machines see it: slow, failing, torn by crashes, listing late.

What `create` and a writer's `close` returned from is durable. A file whose writer died before `close` keeps some
prefix of its bytes under its name, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from penstock.errors import StorageFailed, storage_failed
from penstock.store.base import AlreadyExists, Entry, Store
from penstock.store.local import LOG_BYTES_MAX
from penstock.store.memory import MemoryReader
from penstock.store.paths import check_folder, check_path
from penstock.testing.simulate.faults import Fault
from penstock.testing.simulate.fibers import Crashed, Process

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World

T = TypeVar("T")


@dataclass(slots=True)
class File:
    """`durable` once its writer closed it; a listing shows it from `listed_at` on."""

    data: bytes
    durable: bool
    listed_at: float


@dataclass(slots=True)
class Disk:
    """What all processes share."""

    latency_s: float = 0.0
    files: dict[str, File] = field(default_factory=dict)
    being_written: dict[str, SimWriter] = field(default_factory=dict)

    def list_everything(self) -> None:
        for file in self.files.values():
            file.listed_at = 0.0

    def lose_process(self, process: Process, keep: Callable[[int], int | None]) -> None:
        """A process died: of its unfinished files some prefix is left, or nothing."""
        for path, writer in list(self.being_written.items()):
            if writer.process is process:
                del self.being_written[path]
                if path not in self.files:  # deleted meanwhile
                    continue
                length = keep(len(writer.data))
                if length is None:
                    del self.files[path]
                else:
                    self.files[path].data = bytes(writer.data[:length])


class SimStore:
    """One process's handle to the disk."""

    def __init__(self, world: World, process: Process, disk: Disk, *, aside: bool = False) -> None:
        """With `aside` time stands still and nothing fails."""
        self._world, self._process, self._disk, self._aside = world, process, disk, aside
        self._checked = disk is world.disk  # the others hold savepoints

    @property
    def url(self) -> str:
        return "memory://simulated"

    def create(self, path: str, data: bytes) -> None:
        def effect() -> None:
            if path in self._disk.files:
                raise AlreadyExists(path)
            if self._checked:
                self._world.checks.before_create(self._process, path, data)
            self._disk.files[path] = File(bytes(data), durable=True, listed_at=self._world.scheduler.now)

        self._call("create", check_path(path), effect)

    def read(self, path: str) -> bytes:
        return self._call("read", check_path(path), lambda: self._data(path))

    def exists(self, path: str) -> bool:
        return self._call("exists", check_path(path), lambda: path in self._disk.files)

    def list(self, prefix: str) -> list[Entry]:
        folder = check_folder(prefix)
        start = f"{folder}/" if folder else ""

        def effect() -> list[Entry]:
            now, files = self._world.scheduler.now, self._disk.files
            found = sorted([path for path in files if path.startswith(start)])
            return [Entry(path, len(files[path].data)) for path in found if files[path].listed_at <= now]

        return self._call("list", prefix, effect)

    def adopt(self, path: str, origin: Store, *, link: bool = True) -> None:  # noqa: ARG002 - bytes never change
        self.create(path, origin.read(path))

    def leftovers(self, older_than_s: float) -> tuple[Entry, ...]:  # noqa: ARG002 - as LocalStore has it
        return ()

    def delete(self, paths: Iterable[str]) -> None:
        """A crash may come between any two files."""
        for path in paths:
            check_path(path)

            def effect(path: str = path) -> None:
                if path in self._disk.files:
                    if self._checked:
                        self._world.checks.before_delete(self._process, path)
                    del self._disk.files[path]

            self._call("delete", path, effect)

    def append(self, path: str, line: bytes) -> int:
        """Never waits, never fails."""
        if not self._process.alive:
            return 0
        file = self._disk.files.setdefault(path, File(b"", durable=True, listed_at=self._world.scheduler.now))
        file.data += line if line.endswith(b"\n") else line + b"\n"
        return len(file.data)

    def open_writer(self, path: str) -> SimWriter:
        def effect() -> SimWriter:
            if path in self._disk.files:
                raise AlreadyExists(path)
            self._disk.files[path] = File(b"", durable=False, listed_at=self._listed_at())
            writer = self._disk.being_written[path] = SimWriter(self, self._process, path)
            return writer

        return self._call("open", check_path(path), effect)

    def open_reader(self, path: str) -> MemoryReader:
        return MemoryReader(path, self.read(path))

    def local_path(self, path: str) -> str | None:  # noqa: ARG002 - nothing to map
        return None

    def drop_copy(self, path: str) -> bool:  # noqa: ARG002 - nor to copy
        return False

    def put_down(self, data: pa.Buffer) -> pa.Buffer:
        return data

    @property
    def log_bytes_max(self) -> int:
        return LOG_BYTES_MAX

    def close_writer(self, writer: SimWriter) -> None:
        def effect() -> None:
            file = self._disk.files.get(writer.path)
            if file is not None:  # deleted meanwhile: a file without a name, gone with its last handle
                file.data, file.durable = bytes(writer.data), True
            self._disk.being_written.pop(writer.path, None)

        self._call("close", writer.path, effect)

    def drop_writer(self, writer: SimWriter) -> None:
        if self._process.alive and self._disk.being_written.pop(writer.path, None) is not None:
            self._disk.files.pop(writer.path, None)

    def _data(self, path: str) -> bytes:
        file = self._disk.files.get(path)
        if file is None:
            raise storage_failed(path, FileNotFoundError(2, "no such file"))
        return file.data

    def _listed_at(self) -> float:
        world = self._world
        if not world.faults.on or not world.faults.rates.list_lag_s:
            return world.scheduler.now
        return world.scheduler.now + world.rng.random() * world.faults.rates.list_lag_s

    def _call(self, what: str, path: str, effect: Callable[[], T]) -> T:
        world = self._world
        if self._aside:
            return effect()
        if not self._process.alive:
            raise Crashed
        fault = world.outside_call(self._process, f"{what} {path}")
        if fault is Fault.FAIL_BEFORE:
            raise _failure(what, path)
        if self._disk.latency_s:
            world.scheduler.pause(self._disk.latency_s)
        result = effect()
        world.log(f"{what} {path}")
        if fault is Fault.CRASH_AFTER:
            world.crash(self._process)
        if fault is Fault.FAIL_AFTER:
            raise _failure(what, path)
        return result


class SimWriter:
    """A new file; readers may see its name at once, its bytes only after `close`."""

    def __init__(self, store: SimStore, process: Process, path: str) -> None:
        self._store, self.process, self.path, self.data = store, process, path, bytearray()
        self._done = False

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data).cast("B")
        self.data += view
        return view.nbytes

    def tell(self) -> int:
        return len(self.data)

    def close(self) -> None:
        if not self._done:
            self._store.close_writer(self)
            self._done = True

    def abort(self) -> None:
        if not self._done:
            self._done = True
            self._store.drop_writer(self)


def _failure(what: str, path: str) -> StorageFailed:
    return StorageFailed(f"{path}: simulated failure of {what}", cause="the simulator", next_step="start again")
