"""``penstock savepoint``: a copy of a stopped query's checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from penstock.cli.main import main
from tests.support.engine_jobs import FakeClock, assert_exact, finished, keyed_slow


def test_a_savepoint_of_a_stopped_query_is_made_and_goes_on(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """B14, E4."""
    run = finished(tmp_path / "here", clock, table)
    made = CliRunner().invoke(main, ["savepoint", str(tmp_path / "here"), str(tmp_path / "saved"), "--json"])
    assert made.exit_code == 0
    told = json.loads(made.output)
    assert (told["checkpoint"], told["rows_in_flight"]) == (4, 0)
    run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path / "new", restore=tmp_path / "saved").await_termination(
        30
    )
    assert_exact(table, 600)
    older = ["savepoint", str(tmp_path / "here"), str(tmp_path / "older"), "--checkpoint", "3"]
    assert "checkpoint 3, 0 rows in flight" in CliRunner().invoke(main, older).output


def test_what_cannot_be_is_refused_with_its_code(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """E5."""
    finished(tmp_path / "here", clock, table)
    for origin, target, code in (
        ("nothing", "saved", "PEN-014"),
        ("here", "here", "PEN-016"),
    ):
        refused = CliRunner().invoke(main, ["savepoint", str(tmp_path / origin), str(tmp_path / target)])
        assert refused.exit_code == 1
        assert code in refused.output
    assert not (tmp_path / "saved").exists()
