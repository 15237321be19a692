"""Damaged bytes in a checkpoint: the query must name the file, and go on from an older checkpoint or the whole file."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.engine.checkpoints import Checkpoints
from penstock.protocol.layout import manifest_path
from penstock.store import open_store
from tests.chaos.messages import Ended, Refused
from tests.chaos.verdict import Wrong, require_names, require_understandable

if TYPE_CHECKING:
    from tests.chaos.run import Run

NOTICE_S_MAX = 6.0
"""How long a query gets to come across damaged bytes: it reads only what it needs."""
CORRUPT, TABLE_AHEAD = "PEN-012", "PEN-042"


def corrupt_file(run: Run, chance: random.Random) -> str:
    """A file that the newest checkpoint needs."""
    run.stop()
    checkpoints = Checkpoints(open_store(str(run.checkpoint)))
    newest = checkpoints.newest()
    assert newest is not None
    victim = chance.choice([manifest_path(newest.checkpoint), *(file.path for file in newest.entries())])
    path = run.checkpoint / victim
    whole = path.read_bytes()
    _replace(path, _damaged(whole, chance))
    found = _noticed(run, victim)
    kind = victim.partition("/")[0]
    if found is None:
        _put_back(path, whole)
        run.ensure_runs()
        return f"{kind}, not read"
    older = [int(number) for number in checkpoints.ids() if number < newest.checkpoint]
    if older and chance.random() < 0.5 and _goes_back(run, older[-1], victim):
        _put_back(path, whole)
        return f"{kind}, {CORRUPT}, older checkpoint restored"
    _put_back(path, whole)
    run.ensure_runs(after=run.driver.outcome)
    return f"{kind}, {CORRUPT}, bytes put back"


def _damaged(whole: bytes, chance: random.Random) -> bytes:
    """Some bits flipped, or the end missing."""
    if chance.random() < 0.2:
        return whole[: chance.randrange(len(whole))]
    damaged = bytearray(whole)
    start = chance.randrange(len(whole))
    for place in range(start, min(len(whole), start + chance.choice((1, 16, 256)))):
        damaged[place] ^= chance.randint(1, 255)
    return bytes(damaged)


def _replace(path: Path, data: bytes) -> None:
    """Another file of the same name, at once: others may be hard links to the one that was there, or be read."""
    hidden = path.with_name(f".{path.name}")
    hidden.write_bytes(data)
    hidden.rename(path)


def _put_back(path: Path, whole: bytes) -> None:
    if path.exists():
        _replace(path, whole)


def _noticed(run: Run, victim: str) -> Ended | Refused | None:
    """The error with which the query refuses to start, or stops; None if it needs those bytes for nothing so far."""
    run.begin()
    driver = run.driver
    driver.wait(lambda: driver.outcome is not None or any(not epoch.in_flight for epoch in driver.epochs), NOTICE_S_MAX)
    outcome = run.end()
    if not outcome.code:
        return None
    _require_corrupt(outcome, victim)
    return outcome


def _require_corrupt(outcome: Ended | Refused, victim: str) -> None:
    require_understandable(outcome)
    if outcome.code != CORRUPT:
        raise Wrong(f"{victim} is damaged, and the query says: {outcome.message or 'nothing'}")
    require_names(outcome, victim)


def _goes_back(run: Run, checkpoint: int, victim: str) -> bool:
    """Whether the query goes on from an older checkpoint. It cannot if the table is ahead, or the file is needed there,
    too."""
    answer = run.begin(restore=checkpoint)
    if not isinstance(answer, Refused):
        driver = run.driver
        driver.wait(lambda: driver.outcome is not None or bool(driver.epochs), NOTICE_S_MAX)
        if driver.outcome is None:
            return True
        answer = driver.outcome
    require_understandable(answer)
    if answer.code != TABLE_AHEAD:
        _require_corrupt(answer, victim)
    return False
