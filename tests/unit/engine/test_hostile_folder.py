"""A checkpoint folder may come from anybody: nothing outside of it is read, written or deleted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.main import main
from penstock.engine.attempts import AttemptFiles
from penstock.engine.checkpoints import Checkpoints
from penstock.engine.sourcelog import bring_source
from penstock.errors import ConfigError, CorruptFile, UnsafeName
from penstock.observe.events import SavepointTaken, decode_events, encode_event
from penstock.protocol.codec import UnreadableManifest, decode_manifest
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.layout import Announcement, AttemptId
from penstock.store import LocalStore, MemoryStore, Store, open_store
from penstock.store.local import READ_BYTES_MAX
from penstock.text import printable, redacted
from tests.fuzz.mutate import sealed
from tests.support.golden_checkpoint import GOLDEN

MANIFEST = "manifests/0000000005.json"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    (tmp_path / "outside/folder").mkdir(parents=True)
    (tmp_path / "outside/x").write_text("private")
    (tmp_path / "outside/folder/0000000001-g1-s0-a0-0.arrow").write_text("private")
    return LocalStore(tmp_path / "checkpoint")


def everything(path: Path) -> dict[str, str]:
    return {str(file.relative_to(path)): file.read_text() for file in path.rglob("*") if file.is_file()}


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["../x", "a/../../x", "/x", "", ".", "..", "a//b", "a/./b", "a/", "a\0b", "a\nb", "a\x1bb", "a\x9bb", "a" * 256,
     "é" * 200, "a/" * 600 + "a", "a\udc80"],
)  # fmt: skip
def test_a_name_that_leads_out_or_cannot_be_one_is_refused_with_a_code(path: str) -> None:
    for store in (LocalStore("/nowhere"), MemoryStore()):
        with pytest.raises(UnsafeName, match="PEN-018"):
            store.read(path)


@pytest.mark.parametrize("path", ["a", ".hidden", "a.b/c d", "..a", "a..", "...", "source/offsets/.0.crc", "ä/日本"])
def test_an_ordinary_name_passes(path: str) -> None:
    store = MemoryStore()
    store.create(path, b"1")
    assert store.read(path) == b"1"


def test_names_are_checked_without_assertions_too(tmp_path: Path) -> None:
    """``python -O`` drops assert statements."""
    code = (
        "assert False\n"
        "import sys\n"
        "from penstock.store import AlreadyExists, LocalStore\n"
        "from penstock.errors import UnsafeName\n"
        "store = LocalStore(sys.argv[1])\n"
        "for use in (store.read, store.exists, store.open_writer, store.open_reader, lambda p: store.delete([p]),\n"
        "            lambda p: store.create(p, b''), lambda p: store.append(p, b''), store.list, store.local_path):\n"
        "    for path in ('../x', '/etc/passwd', 'a/../../x', 'a/link'):\n"
        "        try:\n"
        "            use(path)\n"
        "        except (UnsafeName, AlreadyExists):\n"
        "            continue\n"
        "        if path != 'a/link':\n"
        "            sys.exit(f'{use} took {path}')\n"
    )
    (tmp_path / "folder/a").mkdir(parents=True)
    (tmp_path / "x").write_text("private")
    (tmp_path / "folder/a/link").symlink_to(tmp_path / "x")
    done = subprocess.run(
        [sys.executable, "-O", "-c", code, str(tmp_path / "folder")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "x").read_text() == "private"


# -- links -------------------------------------------------------------------------------------------------------------


def test_a_link_to_a_file_is_never_read_written_or_followed(store: LocalStore, tmp_path: Path) -> None:
    store.create("state/a", b"1")
    (store.root / "state/link").symlink_to(tmp_path / "outside/x")
    for use in (store.read, store.exists, store.open_reader, store.local_path, lambda path: store.append(path, b"x")):
        with pytest.raises(UnsafeName, match="symbolic link"):
            use("state/link")
    assert [entry.path for entry in store.list("")] == ["state/a"]
    assert everything(tmp_path / "outside")["x"] == "private"


def test_a_link_to_a_folder_is_never_walked_into(store: LocalStore, tmp_path: Path) -> None:
    store.create("state/a", b"1")
    (store.root / "state/sum").symlink_to(tmp_path / "outside/folder")
    assert [entry.path for entry in store.list("state")] == ["state/a"]
    for use in (store.read, store.exists, store.open_writer, store.open_reader, lambda path: store.create(path, b"")):
        with pytest.raises(UnsafeName, match="state/sum"):
            use("state/sum/0000000001-g1-s0-a0-0.arrow")
    with pytest.raises(UnsafeName, match="state/sum"):
        store.delete(["state/sum/0000000001-g1-s0-a0-0.arrow"])
    with pytest.raises(UnsafeName, match="state/sum"):
        store.list("state/sum")
    assert len(everything(tmp_path / "outside")) == 2


def test_deleting_a_link_removes_the_link(store: LocalStore, tmp_path: Path) -> None:
    store.create("a", b"1")
    (store.root / "link").symlink_to(tmp_path / "outside/x")
    store.delete(["link"])
    assert not (store.root / "link").is_symlink()
    assert everything(tmp_path / "outside")["x"] == "private"


def test_the_folder_itself_may_be_a_link_of_the_users(store: LocalStore, tmp_path: Path) -> None:
    store.create("a/b", b"1")
    (tmp_path / "link").symlink_to(store.root)
    linked = LocalStore(tmp_path / "link")
    linked.create("a/c", b"2")
    assert (linked.read("a/b"), store.read("a/c")) == (b"1", b"2")


def test_a_pipe_in_the_place_of_a_file_does_not_hold_its_reader(store: LocalStore) -> None:
    store.create("a", b"1")
    os.mkfifo(store.root / "pipe")
    with pytest.raises(UnsafeName):
        store.read("pipe")
    with pytest.raises(UnsafeName):
        store.append("pipe", b"line")
    assert [entry.path for entry in store.list("")] == ["a"]


def test_a_link_in_source_is_neither_copied_nor_left_to_spark(store: LocalStore, tmp_path: Path) -> None:
    store.create("source/metadata", b"{}")
    (store.root / "source/secret").symlink_to(tmp_path / "outside/x")
    target = LocalStore(tmp_path / "target")
    bring_source(store, target, None)
    assert everything(tmp_path / "target") == {"source/metadata": "{}"}
    with pytest.raises(UnsafeName, match="source/secret"):
        store.require_plain("source")


def test_a_file_that_must_fit_into_memory_is_not_read_when_it_does_not(store: LocalStore) -> None:
    store.create("manifests/1", b"1")
    os.truncate(store.root / "manifests/1", READ_BYTES_MAX + 1)
    with pytest.raises(CorruptFile, match="are read as a whole"):
        store.read("manifests/1")


# -- lists of attempts -------------------------------------------------------------------------------------------------


def test_names_that_lead_out_of_a_table_are_left_alone(store: LocalStore, caplog: pytest.LogCaptureFixture) -> None:
    path = Announcement("sink", AttemptId(9, 1, 0, "0")).path
    store.append(path, b"../../outside/x\n/etc/passwd\nbucket-0/a.parquet\n\xff\x1b[2J\n")
    removed: list[str] = []
    attempts = AttemptFiles(store, "sink", generation=Generation(2), taken_over=CheckpointId(3), owners={})
    attempts.sweep(removed.extend)
    assert removed == ["bucket-0/a.parquet"]
    assert store.list("attempts") == []
    assert "\x1b" not in caplog.text


# -- manifests ---------------------------------------------------------------------------------------------------------


def forged(change: object) -> bytes:
    document = json.loads((GOLDEN / MANIFEST).read_bytes().split(b"\n")[0])
    assert callable(change)
    change(document)
    return sealed(json.dumps(document).encode())


EDGE = "clicks-to-totals"


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["edges"][EDGE]["segments"][0].update(path="../x"),
        lambda m: m["edges"][EDGE]["segments"][0].update(path="manifests/0000000005.json"),
        lambda m: m["edges"][EDGE]["segments"][0].update(rows=-1),
        lambda m: m["edges"][EDGE]["segments"][0]["spans"][0].__setitem__(1, 61),
        lambda m: m["edges"][EDGE]["segments"][0]["spans"][0].__setitem__(0, [[0, 13]]),
        lambda m: m["edges"][EDGE]["segments"][0]["spans"][1].__setitem__(0, [[0, 6]]),
        lambda m: m["edges"][EDGE].update(accepted=10**30),
        lambda m: m["edges"][EDGE].update(consumed=491),
        lambda m: m["edges"].__setitem__("..", m["edges"].pop(EDGE)),
        lambda m: m["state"]["totals"][0].update(bytes=2**64),
        lambda m: m["state"]["totals"][0].update(ranges=[[0, 12], [3, 5]]),
        lambda m: m["state"]["totals"][0].update(path="state/../x"),
        lambda m: m.update(max_parallelism=2**40),
        lambda m: m.update(parallelism={"totals": 13}),
        lambda m: m.update(checkpoint=-1),
        lambda m: m.update(parent=5),
        lambda m: m.update(identity="../.."),
        lambda m: m["sinks"]["table"]["pending"].append(m["sinks"]["table"]["pending"][0]),
    ],
)
def test_a_manifest_that_cannot_be_true_is_corrupt_though_its_checksum_fits(change: object) -> None:
    assert isinstance(decode_manifest(forged(change)), UnreadableManifest)


def test_the_same_manifest_unchanged_is_read() -> None:
    assert not isinstance(decode_manifest(forged(lambda _: None)), UnreadableManifest)


def test_nesting_without_end_is_corrupt() -> None:
    deep = b'{"format":1,"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    assert isinstance(decode_manifest(sealed(deep)), UnreadableManifest)


def test_a_manifest_under_another_number_is_corrupt(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.create("manifests/0000000009.json", (GOLDEN / MANIFEST).read_bytes())
    with pytest.raises(CorruptFile, match="is the manifest of checkpoint 5"):
        Checkpoints(store).newest()


# -- terminals and secrets ---------------------------------------------------------------------------------------------

ESCAPES = "\x1b[2J\x9b31m\u202e\x07"


def test_what_a_terminal_would_obey_is_written_out() -> None:
    assert printable("a\x1b[2J\tb\n") == "a\\x1b[2J\\x09b\\x0a"
    assert printable("a\x9b\n", lines=True) == "a\\x9b\n"
    assert printable("Grüße, 日本 – ok") == "Grüße, 日本 – ok"


@pytest.mark.parametrize(
    "arguments", [("commits",), ("commits", "--json"), ("checkpoints",), ("checkpoints", "--json")]
)
def test_escapes_in_a_folder_do_not_reach_the_terminal(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    store: Store = open_store(str(tmp_path))
    store.create(MANIFEST, forged(lambda m: m.update(created_at=ESCAPES, parallelism={ESCAPES: 1})))
    event = {
        "event": "Committed", "at": ESCAPES, "sink": ESCAPES, "first": 1, "last": 2, "snapshot": 1, "rows": 1,
        "files": 1, "duration_s": None,
    }  # fmt: skip
    store.append("events.jsonl", json.dumps(event).encode())
    result = CliRunner().invoke(main, [*arguments, str(tmp_path)])
    assert result.exit_code == 0
    assert printable(result.output, lines=True) == result.output
    if arguments[-1] == "--json":
        assert json.loads(result.output)


def test_numbers_that_cannot_be_printed_are_left_out_of_the_history(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.create(MANIFEST, (GOLDEN / MANIFEST).read_bytes())
    for rows in (f"1{'0' * 6000}", "-5", "1e400", "[" * 5000 + "]" * 5000):
        store.append(
            "events.jsonl",
            b'{"event":"Committed","at":"","sink":"s","first":1,"last":2,"snapshot":1,"rows":%s,"files":1,'
            b'"duration_s":null}' % rows.encode(),
        )
    result = CliRunner().invoke(main, ["commits", str(tmp_path)])
    assert (result.exit_code, result.output) == (0, "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://key:secret@bucket/x", "s3://***@bucket/x"),
        ("https://token@host/x", "https://***@host/x"),
        ("abfss://container@account.dfs.core.windows.net/x", "abfss://container@account.dfs.core.windows.net/x"),
        ("abfss://c:pw@account/x", "abfss://***@account/x"),
        ("https://host/x?sig=abc&se=2026 next", "https://host/x?sig=***&se=*** next"),
        ("aws_secret_access_key=abc, region=eu", "aws_secret_access_key=***, region=eu"),
        ('{"session_token":"abc"}', '{"session_token":"***"}'),
        ("/data/ckpt@42", "/data/ckpt@42"),
        ("mail me@example.org", "mail me@example.org"),
    ],
)
def test_secrets_are_taken_out_of_text(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_secrets_reach_neither_errors_nor_events() -> None:
    url = "s3://key:hidden@bucket/x?sig=hidden"
    error = CorruptFile(f"{url} is bad", cause=url, next_step=url, path=url)
    assert "hidden" not in str(error) + repr(error.to_report())
    event = SavepointTaken(
        at="", path=url, checkpoint=CheckpointId(1), rows_in_flight=0, files=0, bytes=0, duration_s=0
    )
    line = encode_event(event)
    assert b"hidden" not in line
    assert len(decode_events(line)) == 1


def test_a_url_with_credentials_is_refused_without_repeating_them() -> None:
    with pytest.raises(ConfigError, match="credentials") as raised:
        open_store("s3://key:hidden@bucket/folder")
    assert "hidden" not in str(raised.value)
