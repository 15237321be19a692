"""The names in a checkpoint folder: each is read back as what it was made of, and one module alone spells them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol import layout
from penstock.protocol.foreign import Free, judge_folder
from penstock.protocol.ids import BatchId, CheckpointId, Generation
from penstock.protocol.layout import Announcement, AttemptId, DataFile, HungSign, Lease
from tests.unit.test_architecture import PACKAGE

NUMBERS = st.integers(0, 9_999_999_999)
NAMES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True)
ATTEMPTS = st.builds(
    AttemptId,
    NUMBERS.map(CheckpointId),
    NUMBERS.map(Generation),
    st.integers(0, 40_000),
    st.from_regex(r"[0-9a-z-]{1,12}", fullmatch=True),
)
DATA_FILES = st.builds(
    DataFile, st.sampled_from(layout.DATA_FOLDERS), NAMES | st.builds("{}/{}".format, NAMES, NAMES), ATTEMPTS, NUMBERS
)
SIGNS = st.builds(HungSign, ATTEMPTS, st.just(layout.STUCK) | st.integers(1, 99).map(str))

Read = Callable[[str], Any]
KINDS: dict[str, tuple[Read, str]] = {
    "manifest": (layout.read_manifest_path, layout.manifest_path(CheckpointId(7))),
    "retired": (layout.read_retired_path, layout.retired_path(CheckpointId(7))),
    "generation": (layout.read_generation_path, layout.generation_path(Generation(7))),
    "older events": (layout.read_older_events_path, layout.older_events_path(7)),
    "segment": (layout.read_data_file, "segments/a-to-b/0000000007-g2-s0-a31-0.arrow"),
    "state": (layout.read_data_file, "state/total/timers/0000000007-g2-s0-a31-0.arrow"),
    "announcement": (layout.read_announcement, "attempts/out/0000000007-g2-s0-a31.txt"),
    "sign": (layout.read_hung_sign, "hung/0000000007-g2-s0-a31-stuck.json"),
    "lease": (layout.read_lease, "readers/0000000007-1800000000-00c0ffee00c0ffee.lease"),
    "source entry": (layout.read_source_entry, "source/offsets/7"),
}
SPELT_ALONE = {
    "manifests",
    "generations",
    "segments",
    "attempts",
    "hung",
    "events.jsonl",
    "restored.json",
    "savepoint.partial",
}
"""Words that mean nothing else: no other module has one as a text of its own."""
ALSO_COLUMNS = {"state", "source", "events", "offsets", "commits"}
"""Words that users may have as names. They mean a folder where files are made and looked for."""
MAKE_FILES = ("store/", "inflight/", "subtask/", "engine/")
BEGINS_A_PATH = re.compile(
    r"(?:\S*[^\w.])?(?:manifests|generations|segments|state|attempts|hung|events|source|offsets)/\S*"
)
"""A text without spaces: what people read may mention a folder."""
NOT_THE_FOLDER = {
    ("sinks/upkeep.py", "manifests"),
    ("sinks/iceberg/keeper.py", "manifests"),
    ("testing/simulate/checks.py", "attempts"),
    ("engine/dryrun.py", "source"),
    ("engine/naming.py", "source"),
    ("observe/metrics.py", "segments"),
    ("observe/page/document.py", "segments"),
}
"""An option of a table's upkeep (Paimon has manifests, too), what a checker of the simulator is called, a kind of part
in a dry run, a label of a metric, and a field of the page's document."""


@given(NUMBERS)
def test_a_numbered_name_is_read_back(number: int) -> None:
    assert layout.read_manifest_path(layout.manifest_path(CheckpointId(number))) == number
    assert layout.read_retired_path(layout.retired_path(CheckpointId(number))) == number
    assert layout.read_generation_path(layout.generation_path(Generation(number))) == number
    assert layout.read_older_events_path(layout.older_events_path(number)) == number


@given(DATA_FILES)
def test_the_name_of_a_segment_or_state_file_is_read_back(file: DataFile) -> None:
    assert layout.read_data_file(file.path) == file


@given(NAMES, ATTEMPTS)
def test_the_name_of_an_announcement_is_read_back(sink: str, attempt: AttemptId) -> None:
    announcement = Announcement(sink, attempt)
    assert layout.read_announcement(announcement.path) == announcement
    assert announcement.path.startswith(f"{layout.announcements(sink)}/")


@given(SIGNS)
def test_the_name_of_a_sign_is_read_back(sign: HungSign) -> None:
    assert layout.read_hung_sign(sign.path) == sign


@given(NUMBERS, NUMBERS, st.from_regex(r"[0-9a-f]{16}", fullmatch=True))
def test_the_name_of_a_lease_is_read_back(checkpoint: int, taken: int, token: str) -> None:
    lease = Lease(CheckpointId(checkpoint), taken, token)
    assert layout.read_lease(lease.path) == lease


@given(st.integers(0, 10**18))
def test_the_batch_of_an_offset_file_is_read_back(batch: int) -> None:
    path = layout.offsets_path(BatchId(batch))
    folder, _, name = path.rpartition("/")
    assert layout.read_source_entry(path) == layout.read_source_entry(f"{folder}/.{name}.crc") == batch


@given(DATA_FILES)
def test_a_name_that_was_made_here_is_one_that_a_manifest_may_hold(file: DataFile) -> None:
    assert layout.is_in_data_folder(file.path)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_name_is_of_one_kind_alone(kind: str) -> None:
    _, path = KINDS[kind]
    assert {read for read, _ in KINDS.values() if read(path) is not None} == {KINDS[kind][0]}
    assert layout.top_of(path) in layout.TOP_NAMES


def test_a_folder_that_holds_nothing_but_our_files_is_free_for_a_query() -> None:
    assert judge_folder([path for _, path in KINDS.values()]) == Free()


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("change", ["x{}", "{}x", "{}\n", "x/{}", "{}.tmp"])
def test_a_name_with_more_in_it_is_somebody_elses(kind: str, change: str) -> None:
    read, path = KINDS[kind]
    assert read(change.format(path)) is None


@pytest.mark.parametrize(
    "path",
    [
        "manifests/42.json",
        "manifests/00000000042.json",
        "manifests/000000004².json",
        "state/0000000007-g2-s0-a1-0.arrow",
    ],
)
def test_a_name_of_another_form_is_of_no_kind(path: str) -> None:
    assert all(read(path) is None for read, _ in KINDS.values())


def spelt(source: str, words: set[str] = SPELT_ALONE) -> Iterator[tuple[int, str]]:
    """Lines and texts that spell a folder or a file of the checkpoint; docstrings and texts for people may."""
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            text = node.value
            if text in words or BEGINS_A_PATH.fullmatch(text):
                yield node.lineno, text


def test_no_other_module_spells_a_name_of_the_checkpoint_folder() -> None:
    home = PACKAGE / "protocol" / "layout.py"
    found = [
        f"{_short(path)}:{line} {text!r}"
        for path in PACKAGE.rglob("*.py")
        if path != home
        for line, text in spelt(path.read_text(), _words(_short(path)))
        if (_short(path), text) not in NOT_THE_FOLDER
    ]
    assert found == []


def _words(path: str) -> set[str]:
    return SPELT_ALONE | ALSO_COLUMNS if path.startswith(MAKE_FILES) else SPELT_ALONE


def _short(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize(
    "source",
    ['store.list("manifests")', 'path.startswith("state/")', 'f"source/offsets/{batch}"', 'f"{root}/segments/{name}"'],
)
def test_a_name_that_is_spelt_elsewhere_would_be_noticed(source: str) -> None:
    assert list(spelt(source))


def test_what_people_read_may_mention_a_folder() -> None:
    assert not list(spelt('raise Failed("name the folder that holds manifests/ and source/")'))
