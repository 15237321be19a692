"""The plan of an epoch on its way to tasks, beside a job that is the same in all epochs.

A property of the job has the plan's head. It has the parts of all subtasks too while they are short: Spark sends a
job's properties with each task and writes them to its event log. Longer ones are in a file of the checkpoint folder for
as long as the job runs, and each task reads its own part of it.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec
from pyspark import SparkContext, TaskContext

from penstock.errors import PenstockError
from penstock.protocol.layout import PlanFile
from penstock.protocol.parts import head_of, joined, packed, part_at
from penstock.protocol.plan import StagePlan, SubtaskPlan
from penstock.store.base import Store

PLAN_PROPERTY = "penstock.plan"
PROPERTY_BYTES_MAX = 1 << 14
"""Of the parts, as they are in the property: some fifty subtasks, compressed."""
COMPRESSED_MIN = 32
"""No plan becomes shorter than this share of its bytes; a longer plan is not even tried."""


class Sent(msgspec.Struct, frozen=True, omit_defaults=True):
    """The text of the property; the parts are in it, or in the file of that name.

    `order` has the subtask of each task, where that is not the task of the same number.
    """

    head: msgspec.Raw
    parts: str | None = None
    file: str | None = None
    order: tuple[int, ...] = ()


@contextmanager
def sent_along(context: SparkContext, plan: StagePlan, store: Store, number: int) -> Iterator[None]:
    """Jobs that this thread starts inside have the plan with them; `number` is another one for each job of a driver."""
    sent, parts = sent_as(plan, number)
    if sent.file is not None:
        store.create(sent.file, parts)
    try:
        with _as_property(context, sent):
            yield
    finally:
        if sent.file is not None:
            with suppress(PenstockError):  # the collector finds it
                store.delete([sent.file])


@contextmanager
def sent_in_order(context: SparkContext, plan: StagePlan, subtasks: Sequence[SubtaskPlan]) -> Iterator[bool]:
    """Jobs that this thread starts inside have a task for each of these subtasks; False where they are too many."""
    parts = _compressed(packed(subtasks, plan.parallelism))
    if parts is None:
        yield False
        return
    order = tuple(subtask.subtask for subtask in subtasks)
    with _as_property(context, Sent(msgspec.Raw(head_of(plan)), parts=parts, order=order)):
        yield True


@contextmanager
def _as_property(context: SparkContext, sent: Sent) -> Iterator[None]:
    context.setLocalProperty(PLAN_PROPERTY, msgspec.json.encode(sent).decode())
    try:
        yield
    finally:
        context.setLocalProperty(PLAN_PROPERTY, None)  # type: ignore[arg-type]  # None takes it back


def sent_as(plan: StagePlan, number: int) -> tuple[Sent, bytes]:
    """How a plan travels, and its parts."""
    head, parts = msgspec.Raw(head_of(plan)), packed(plan.launched(), plan.parallelism)
    text = _compressed(parts)
    if text is not None:
        return Sent(head, parts=text), parts
    return Sent(head, file=PlanFile(plan.checkpoint, plan.generation, number).path), parts


def _compressed(parts: bytes) -> str | None:
    """As text that is short enough for a property, if it can be."""
    if len(parts) > COMPRESSED_MIN * PROPERTY_BYTES_MAX:
        return None
    text = base64.b64encode(zlib.compress(parts, 1)).decode()
    return text if len(text) <= PROPERTY_BYTES_MAX else None


def received(context: TaskContext, store: Store, task: int) -> StagePlan:
    """The plan of one subtask, in its task."""
    text = context.getLocalProperty(PLAN_PROPERTY)
    assert text is not None, "the job is started with its plan"
    sent = msgspec.json.decode(text, type=Sent)
    return joined(bytes(sent.head), _part(sent, store, sent.order[task] if sent.order else task))


def _part(sent: Sent, store: Store, subtask: int) -> bytes:
    if sent.parts is not None:
        parts = zlib.decompress(base64.b64decode(sent.parts))
        return part_at(lambda begin, size: parts[begin : begin + size], subtask)
    assert sent.file is not None
    reader = store.open_reader(sent.file)

    def read(begin: int, size: int) -> bytes:
        target = bytearray(size)
        reader.read_into(begin, memoryview(target))
        return bytes(target)

    try:
        return part_at(read, subtask)
    finally:
        reader.close()
