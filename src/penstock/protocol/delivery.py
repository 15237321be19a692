"""Whether the live rows that were delivered are the ones that were accepted.

`accepted` is what the readers of an edge counted, and conservation compares it with what they did: a row that the
readers never saw is in neither. So two other places count, which share no code with the readers: the one that hands the
stream to the subtask (`delivered`, by edge and subtask), and the cluster itself (`handed_over`, over all subtasks of a
stage).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.protocol.plan import StagePlan
from penstock.protocol.report import SubtaskReport
from penstock.protocol.violation import Violation


def misdelivered(plan: StagePlan, reports: Sequence[SubtaskReport]) -> Iterator[Violation]:
    """Edges of subtasks on which rows delivered are not rows accepted, or were not counted."""
    # Which inputs are live is the same for all subtasks.
    live = {part.edge for subtask in plan.subtasks[:1] for part in subtask.inputs if part.live}
    counts = dict.fromkeys(live, 0)
    for report in reports:
        as_counted = counts.copy()
        for part in report.inputs:
            if part.live_accepted:
                as_counted[part.edge] = part.live_accepted
        if as_counted == report.delivered:
            continue
        accepted = {part.edge: part.live_accepted for part in report.inputs}
        for edge in sorted(live | accepted.keys() | report.delivered.keys()):
            got = accepted.get(edge, 0)
            delivered = report.delivered.get(edge, None if edge in live else 0)
            where = f"{edge}, subtask {report.subtask}"
            if delivered is None:
                yield Violation(where, f"the live rows that were delivered were not counted; {got} accepted")
            elif delivered != got:
                yield Violation(where, f"{delivered} live rows delivered, {got} accepted")


def miscounted(plan: StagePlan, reports: Sequence[SubtaskReport], handed_over: int | None) -> Iterator[Violation]:
    """A stage whose subtasks were delivered other rows than the cluster handed over; None: it cannot tell."""
    delivered = sum([rows for report in reports for rows in report.delivered.values()])
    if handed_over is not None and handed_over != delivered:
        yield Violation(
            f"stage {plan.stage}", f"{handed_over} live rows handed over by the cluster, {delivered} delivered"
        )
