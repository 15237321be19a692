"""A slice of the fuzz of folders; ``make fuzz N=50000`` runs more."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz.__main__ import followed, run
from tests.fuzz.watch import Audit, Outside

CASES = 500


def test_damaged_and_forged_folders_do_no_harm() -> None:
    outcomes, wrong = run(0, CASES)
    assert wrong == []
    assert sum(outcomes.values()) == CASES
    assert sum(count for told, count in outcomes.items() if told.startswith("PEN")) > CASES // 20, outcomes


def test_a_case_that_swallows_every_exception_and_never_ends_is_told_with_its_stack(tmp_path: Path) -> None:
    stacks = tmp_path / "stacks"
    hangs = f"""
from tests.fuzz.watch import end_after
def spin():
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
print("BEGIN 7", flush=True)
print("TOLD read", flush=True)
print("BEGIN 8", flush=True)
end_after(0.2, open({str(stacks)!r}, "w"))
spin()
"""
    outcomes: Counter[str] = Counter()
    done, wrong = followed([sys.executable, "-c", hangs], stacks, 7, outcomes)
    assert (done, outcomes) == (2, Counter(read=1))
    assert len(wrong) == 1
    assert wrong[0].startswith("seed 8: ")
    assert "in spin" in wrong[0]


@pytest.mark.parametrize("touch", [Path.read_text, Path.unlink, lambda file: file.write_text("x"), Path.touch])
def test_the_kernel_tells_of_whatever_touches_the_files_around(tmp_path: Path, touch: object) -> None:
    outside = Outside(tmp_path)
    assert outside.touched() == []
    link = tmp_path / "link"
    link.symlink_to(outside.files[0])
    assert callable(touch)
    touch(link if touch is not Path.unlink else outside.files[0])
    assert outside.touched()


def test_the_audit_tells_of_paths_that_lead_out(tmp_path: Path) -> None:
    audit = Audit(tmp_path)
    (tmp_path / "case").mkdir()
    (tmp_path / "case/link").symlink_to(tmp_path / "x")
    (tmp_path / "x").write_text("")
    audit.listening = True
    try:
        (tmp_path / "case/link").read_text()
        (tmp_path / "case/../x").unlink()
        (tmp_path / "case/own").write_text("")
    finally:
        audit.listening = False
    assert len(audit.seen) == 2
