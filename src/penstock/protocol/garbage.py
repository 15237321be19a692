"""Which files of a checkpoint folder are no longer needed.

A name says for which checkpoint and generation the file was written. A file is garbage when no retained manifest
names it and no running epoch can still come to name it: only the current generation's next checkpoint can.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from penstock.protocol.ids import NO_CHECKPOINT, CheckpointId, Generation
from penstock.protocol.layout import read_data_checkpoint, read_data_file, read_plan_file


def written_for(path: str) -> CheckpointId:
    """The checkpoint whose epoch wrote a file; no older checkpoint names it. 0 for a name that we do not give."""
    checkpoint = read_data_checkpoint(path)
    return NO_CHECKPOINT if checkpoint is None else checkpoint


def garbage(
    files: Iterable[str], needed: frozenset[str], *, generation: Generation, published: CheckpointId
) -> tuple[str, ...]:
    """Files to delete, given what retained manifests need and the newest published checkpoint."""
    return tuple(
        path for path in files if path not in needed and _out_of_reach(path, generation=generation, published=published)
    )


def _out_of_reach(path: str, *, generation: Generation, published: CheckpointId) -> bool:
    file = read_data_file(path)
    if file is None:
        return False
    by = file.by
    return by.generation < generation or (by.generation == generation and by.checkpoint <= published)


def left_plans(files: Iterable[str], *, generation: Generation, published: CheckpointId) -> tuple[str, ...]:
    """Plans of jobs that are over, which a driver could not delete: of older drivers, or of published checkpoints."""
    plans = ((path, read_plan_file(path)) for path in files)
    return tuple(
        path
        for path, plan in plans
        if plan is not None and (plan.generation, plan.checkpoint) <= (generation, published)
    )


def retired(
    checkpoints: Iterable[CheckpointId], retain: int, held: Container[CheckpointId] = ()
) -> tuple[CheckpointId, ...]:
    """Checkpoints beyond the newest `retain`, but for those that readers hold."""
    assert retain >= 1
    return tuple(checkpoint for checkpoint in sorted(checkpoints)[:-retain] if checkpoint not in held)


def kept_until(checkpoint: CheckpointId, ids: Iterable[CheckpointId], retain: int) -> CheckpointId:
    """The checkpoint whose publication retires `checkpoint`, given all that are there; the next one at the earliest.

    >>> kept_until(CheckpointId(42), map(CheckpointId, (40, 41, 42)), retain=3)
    45
    >>> kept_until(CheckpointId(40), map(CheckpointId, (40, 41, 42)), retain=3)
    43
    """
    known = list(ids)
    newer = sum(other > checkpoint for other in known)
    return CheckpointId(max(known, default=checkpoint) + max(1, retain - newer))
