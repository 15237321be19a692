"""Taking over a folder while other drivers change it: what is read, published, deleted and told (C9).

Which decision is right is tested in `tests/unit/protocol/test_takeover.py`; here they are carried out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
import pytest

from penstock.engine.checkpoints import Checkpoints, Driver
from penstock.engine.startpoint import StartPoint
from penstock.engine.takeover import Owned, Survey, take_over
from penstock.errors import MissingFile, Overtaken, TablePositionMismatch
from penstock.protocol.ids import NO_GENERATION, CheckpointId, Generation
from penstock.protocol.layout import manifest_path
from penstock.protocol.manifest import Manifest, PipelineShape
from penstock.protocol.recover import first_manifest
from penstock.protocol.takeover import OVERTAKEN_MAX, Wish
from penstock.store.base import AlreadyExists
from penstock.store.memory import MemoryStore

SHAPE = PipelineShape(sources={}, operators={}, edges={}, sinks=())
EMPTY = first_manifest(identity="query", library="", max_parallelism=8, shape=SHAPE, created_at="")
RUNNING = Generation(1)


class Folder(Checkpoints):
    """A folder with one checkpoint of a running driver, which acts at chosen moments."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.before_publish: Callable[[Manifest], None] = lambda _: None
        self.after_publish: Callable[[Manifest], None] = lambda _: None
        self.after_claim: Callable[[], None] = lambda: None
        self.claim_generation(Driver("other", 1, "", ""))
        self.go_on(1)
        self.surveys = 0

    def go_on(self, checkpoint: int) -> None:
        """The running driver publishes."""
        there = msgspec.structs.replace(EMPTY, checkpoint=checkpoint, generation=RUNNING)
        super().publish(there)

    def retire(self, checkpoint: int) -> None:
        self.store.delete([manifest_path(checkpoint)])

    def claim_generation(self, driver: Driver, above: Generation = NO_GENERATION) -> Generation:
        generation = super().claim_generation(driver, above)
        if generation > RUNNING:
            self.after_claim()
        return generation

    def publish(self, manifest: Manifest) -> int:
        self.before_publish(manifest)
        size = super().publish(manifest)
        self.after_publish(manifest)
        return size

    def survey(self) -> Survey:
        self.surveys += 1
        return Survey(StartPoint(self.newest() or EMPTY), {}, {})


def start(folder: Folder, survey: Callable[[], Survey] | None = None, restore: CheckpointId | None = None) -> Owned:
    return take_over(folder, Wish(SHAPE, {}, "lib", restore=restore), survey or folder.survey)


def once(act: Callable[[], None]) -> Callable[..., None]:
    left = [act]
    return lambda *_: left.pop()() if left else None


@pytest.fixture
def folder() -> Folder:
    return Folder()


def test_a_driver_that_nobody_disturbs_looks_once_and_takes_the_next_id(folder: Folder) -> None:
    owned = start(folder)
    assert (owned.manifest.checkpoint, owned.manifest.parent, owned.generation) == (2, 1, 2)
    assert (folder.ids(), folder.surveys) == ([1, 2], 1)
    assert folder.newest() == owned.manifest


def test_a_driver_that_was_overtaken_goes_on_from_what_the_other_published(folder: Folder) -> None:
    folder.before_publish = once(lambda: folder.go_on(2))
    assert (start(folder).manifest.parent, folder.ids()) == (2, [1, 2, 3])


def test_a_takeover_under_a_name_that_retention_freed_is_undone(folder: Folder) -> None:
    def ahead() -> None:
        for checkpoint in (2, 3, 4):
            folder.go_on(checkpoint)
        folder.retire(2)

    folder.before_publish = once(ahead)
    owned = start(folder)
    assert (owned.manifest.checkpoint, owned.manifest.parent) == (5, 4)
    assert folder.ids() == [1, 3, 4, 5]


def test_a_name_that_is_freed_while_the_driver_finds_it_taken_is_no_missing_file(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The running driver had checkpoint 2, went on to 3, and retired 2 before this driver could read whose it is."""
    create = folder.store.create

    def taken(path: str, data: bytes) -> None:
        if path == manifest_path(2):
            monkeypatch.setattr(folder.store, "create", create)
            folder.go_on(3)
            raise AlreadyExists
        create(path, data)

    monkeypatch.setattr(folder.store, "create", taken)
    assert start(folder).manifest.parent == 3
    assert folder.ids() == [1, 3, 4]


def test_a_driver_whose_takeover_was_deleted_with_everything_else_looks_at_everything_again(folder: Folder) -> None:
    folder.after_publish = once(lambda: folder.store.delete([manifest_path(1), manifest_path(2)]))
    owned = start(folder)
    assert (owned.manifest.checkpoint, owned.generation, folder.surveys) == (1, 3, 2)


def test_a_driver_that_goes_back_asks_the_tables_again_when_the_running_one_went_on(folder: Folder) -> None:
    """They may hold more by then than the named checkpoint knows of."""
    folder.go_on(2)
    folder.before_publish = once(lambda: folder.go_on(3))
    owned = start(folder, restore=CheckpointId(1))
    assert (folder.surveys, owned.manifest.checkpoint, owned.generation) == (2, 4, 3)


def overtaken_by_publishing(folder: Folder) -> Callable[[], Survey]:
    folder.before_publish = lambda manifest: folder.go_on(manifest.checkpoint)
    return folder.survey


def overtaken_by_retention(folder: Folder) -> Callable[[], Survey]:
    folder.after_publish = lambda manifest: folder.go_on(manifest.checkpoint + 1)
    return folder.survey


def overtaken_at_the_table(folder: Folder) -> Callable[[], Survey]:
    def ahead() -> Survey:
        folder.go_on(folder.ids()[-1] + 1)
        raise TablePositionMismatch("the table is ahead")

    return ahead


@pytest.mark.parametrize("how", [overtaken_by_publishing, overtaken_by_retention, overtaken_at_the_table])
def test_a_driver_that_is_overtaken_again_and_again_ends_and_says_so(
    folder: Folder, how: Callable[[Folder], Callable[[], Survey]]
) -> None:
    with pytest.raises(Overtaken, match=rf"\[PEN-026\].* {OVERTAKEN_MAX} times, other drivers changed") as caught:
        start(folder, how(folder))
    assert caught.value.fields["times"] == str(OVERTAKEN_MAX)
    assert folder.owners() == dict.fromkeys(folder.ids(), RUNNING), "it left no takeover behind"


def test_a_driver_that_goes_back_gives_up_too(folder: Folder) -> None:
    folder.after_claim = lambda: folder.go_on(folder.ids()[-1] + 1)
    with pytest.raises(Overtaken, match="the last time: another driver published or retired checkpoints"):
        start(folder, restore=CheckpointId(1))
    assert folder.surveys == OVERTAKEN_MAX + 1


def test_every_look_more_than_usual_is_logged_with_its_reason(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    folder.before_publish = once(lambda: folder.go_on(2))
    with caplog.at_level(logging.INFO, "penstock"):
        start(folder)
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "looks again before it takes over: another driver was first to publish checkpoint 2"
    ]


@pytest.mark.parametrize("kind", [TablePositionMismatch, MissingFile])
def test_an_error_of_the_survey_stands_when_the_folder_did_not_change(
    folder: Folder, kind: type[TablePositionMismatch | MissingFile]
) -> None:
    def refused() -> Survey:
        raise kind("as found")

    with pytest.raises(kind, match="as found"):
        start(folder, refused)
    assert folder.store.list("generations") == Folder().store.list("generations"), "nothing was claimed"
    assert folder.ids() == [CheckpointId(1)]
