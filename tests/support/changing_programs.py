"""Programs and changes of them, alone and in pairs, and what each must write by the guide on changing a pipeline.

A program is a value, so two changes that touch different parts of it can be made at once. What was processed before the
change is read from the tables; the rest follows from the program before and the program after.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import penstock as pen
from penstock.sinks.base import Sink

ROWS, FILES, USERS = 300, 3, 5
EXTRA, SHIFT = 1_000_000, 100_000_000
"""What the number of a row grows by for each count of `extra`, and behind `shift`."""


@dataclass(frozen=True)
class Program:
    """Numbers the rows of each user, slowly."""

    front: tuple[str, ...] = ()
    """Operators without state in front; `even` drops odd numbers."""
    behind: tuple[str, ...] = ()
    exchange: str | None = None
    """The key of one more stage in front."""
    name: str = "slow"
    extra: bool = False
    """One more field of state, which counts too."""
    type: str = "bigint"
    column: bool = False
    """One more column of the source."""
    copy: bool = False
    """A second output: the rows of the source."""
    totals: tuple[str, ...] = ()
    """A third one: running aggregates."""
    sink: str = "out"
    table: str = "rows"
    listener: bool = False
    parallelism: int = 2


class Told(pen.CommitListener):
    """Counts commits."""

    @property
    def name(self) -> str:
        return "told"

    def on_commit(self, info: Any, state: bytes) -> bytes:
        return str(int(state or b"0") + 1).encode()


def numbering(program: Program, spend: Callable[[], None]) -> type[pen.KeyedProcess]:
    def process(self: Any, key: Any, rows: Any, state: Any, out: Any) -> None:
        for row in rows:
            spend()
            state.seen = (state.seen or 0) + 1
            nth = state.seen
            if program.extra:
                state.extra = (state.extra or 0) + 1
                nth += EXTRA * state.extra
            out.emit(user=row["user"], number=row["number"], nth=nth)

    declared = {"seen": pen.value_state(program.type)}
    if program.extra:
        declared["extra"] = pen.value_state("bigint")
    output = "user bigint, number bigint, nth bigint"
    return type("Numbering", (pen.KeyedProcess,), {"output": output, "process": process, **declared})


def passing(schema: str) -> type[pen.KeyedProcess]:
    def process(self: Any, key: Any, rows: Any, state: Any, out: Any) -> None:
        out.emit_many(rows)

    return type("Passing", (pen.KeyedProcess,), {"output": schema, "process": process})


def outputs_of(
    program: Program, orders: pen.Stream, sink: Callable[[str], Sink], spend: Callable[[], None]
) -> list[pen.Output]:
    """The program. `sink` gets the names of tables; `spend` is called for each row that is numbered."""
    schema = "user bigint, number bigint, price double" if program.column else "user bigint, number bigint"
    rows = orders
    for name in program.front:
        rows = rows.map_batches(_even if name == "even" else _same, name=name)
    if program.exchange is not None:
        rows = rows.key_by(program.exchange).process(passing(schema), name="exchanged")
    seen = rows.key_by("user").process(numbering(program, spend), name=program.name)
    for name in program.behind:
        seen = seen.map_batches(_shift if name == "shift" else _same, name=name)

    told = [Told()] if program.listener else []
    outputs = [seen.write(sink(program.table), name=program.sink, commit_listeners=told)]
    if program.copy:
        outputs.append(orders.map_batches(_same, name="copied").write(sink("copy"), name="copy"))
    if program.totals:
        chosen = {"n": pen.count(), "total": pen.sum("number")}
        totals = orders.key_by("user").aggregate(**{name: chosen[name] for name in program.totals}, name="totals")
        outputs.append(totals.write(sink("_".join(("totals", *program.totals))), name="_".join(program.totals)))
    return outputs


def _same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _even(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pc.equal(pc.bit_wise_and(batch.column("number"), 1), 0))


def _shift(batch: pa.RecordBatch) -> pa.RecordBatch:
    place = batch.schema.get_field_index("nth")
    return batch.set_column(place, batch.schema.field(place), pc.add(batch.column("nth"), SHIFT))


# -- changes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """Parts of a program before and after, and what the user has to say."""

    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    options: Callable[[Program], dict[str, Any]] = lambda _: {}
    how: str = "restart"
    """Or `fork`, or `savepoint`: where the changed program goes on."""


KINDS: dict[str, Change] = {
    "added in front": Change(after={"front": ("parse",)}),
    "removed in front": Change({"front": ("parse",)}, {"front": ()}),
    "added between": Change({"front": ("parse",)}, {"front": ("parse", "clean")}),
    "places changed": Change({"front": ("parse", "clean")}, {"front": ("clean", "parse")}),
    "filter added": Change(after={"front": ("even",)}),
    "added behind": Change(after={"behind": ("shift",)}),
    "removed behind": Change({"behind": ("shown",)}, {"behind": ()}),
    "renamed": Change(after={"name": "quick"}, options=lambda _: {"renamed": {"slow": "quick"}}),
    "replaced": Change(after={"name": "fresh"}, options=lambda _: {"forget": ["slow"]}),
    "field added": Change(after={"extra": True}),
    "field removed": Change({"extra": True}, {"extra": False}, lambda new: {"forget": [f"{new.name}.extra"]}),
    "wider": Change({"type": "int"}, {"type": "bigint"}),
    "narrower": Change({"type": "bigint"}, {"type": "int"}, lambda new: {"reset": [new.name]}),
    "second output added": Change(after={"copy": True}),
    "output removed": Change({"copy": True}, {"copy": False}, lambda _: {"drop_in_flight": ["orders-to-copied"]}),
    "sink renamed": Change(after={"sink": "results", "table": "results"}),
    "another table": Change(after={"table": "other"}, options=lambda new: {"reset": [new.sink]}),
    "listener added": Change(after={"listener": True}),
    "listener removed": Change({"listener": True}, {"listener": False}),
    "column added": Change(after={"column": True}),
    "column removed": Change({"column": True}, {"column": False}),
    "key changed": Change({"exchange": "user"}, {"exchange": "number"}),
    "stage added": Change(after={"exchange": "user"}),
    "stage removed": Change({"exchange": "user"}, {"exchange": None}),
    "aggregate added": Change({"totals": ("n",)}, {"totals": ("n", "total")}),
    "aggregate removed": Change({"totals": ("n", "total")}, {"totals": ("n",)}, lambda _: {"forget": ["totals.total"]}),
    "parallelism": Change(after={"parallelism": 3}),
    "forked": Change(how="fork"),
    "from a savepoint": Change(how="savepoint"),
}

HOMELESS = (("replaced", "stage removed"), ("removed in front", "replaced"))
"""Together they leave rows in flight without their producer and without their reader: refused, not carried."""


@dataclass(frozen=True)
class Case:
    """One change, or two at once."""

    number: int
    kinds: tuple[str, ...]

    @property
    def name(self) -> str:
        return " + ".join(self.kinds)

    @property
    def changes(self) -> list[Change]:
        return [KINDS[kind] for kind in self.kinds]

    @property
    def how(self) -> str:
        return next((change.how for change in self.changes if change.how != "restart"), "restart")

    @property
    def before(self) -> Program:
        return replace(Program(), **{name: part for change in self.changes for name, part in change.before.items()})

    @property
    def after(self) -> Program:
        return replace(self.before, **{name: part for change in self.changes for name, part in change.after.items()})

    def options(self) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for change in self.changes:
            for name, value in change.options(self.after).items():
                known = merged.get(name)
                merged[name] = value if known is None else {**known, **value} if name == "renamed" else [*known, *value]
        return merged


def cases(count: int, seed: int) -> list[Case]:
    """Each kind alone, then pairs that touch different parts; fewer: drawn from these."""
    rng = random.Random(seed)
    pairs = [(one, two) for one in KINDS for two in KINDS if one < two and _apart(one, two)]
    rng.shuffle(pairs)
    alone = [(kind,) for kind in KINDS]
    if count < len(alone):
        rng.shuffle(alone)
        half = count // 2
        chosen = [*alone[: count - half], *pairs[:half]]
    else:
        chosen = [*alone, *pairs[: count - len(alone)]]
    return [Case(number, kinds) for number, kinds in enumerate(chosen)]


def _apart(one: str, two: str) -> bool:
    first, second = KINDS[one], KINDS[two]
    touched = {*first.before, *first.after} & {*second.before, *second.after}
    assert {*first.before, *first.after} <= {part.name for part in fields(Program)}
    return not touched and "restart" in {first.how, second.how} and (one, two) not in HOMELESS


# -- what must come out ------------------------------------------------------------------------------------------------

Row = dict[str, Any]
Read = Callable[[str], list[Row]]
"""The rows of a table, by its name without prefix; none where it does not exist."""


def everything() -> range:
    return range(ROWS * FILES)


def wrong(case: Case, then: Read, now: Read, batches: int) -> Iterator[str]:
    """What is not as it must be. `then` reads tables as they were at the change, `now` as they are; `batches`
    micro-batches, which are files, had been read by then."""
    done = {row["number"] for row in then(case.before.table)}
    waiting = [number for number in range(batches * ROWS) if number not in done]
    yield from _wrong_rows(case, then(case.before.table), _since(case, then, now), waiting)
    yield from _wrong_copy(case, then("copy"), now("copy"), [*_shared(case, waiting), *everything()[batches * ROWS :]])
    if case.before.totals:
        yield from _wrong_totals(case, then, now)


def _since(case: Case, then: Read, now: Read) -> list[Row]:
    """What the changed program wrote."""
    before, after = then(case.before.table), now(case.after.table)
    if case.before.table != case.after.table or case.how == "fork":
        return after
    known = {row["number"] for row in before}
    return [row for row in after if row["number"] not in known] if _kept(before, after) else []


def _kept(before: Sequence[Row], after: Sequence[Row]) -> bool:
    return not Counter(map(_key, before)) - Counter(map(_key, after))


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(sorted(row.items()))


def _shared(case: Case, waiting: list[int]) -> list[int]:
    """Rows that had been read at the change and reach the output that was added: their only reader is gone."""
    return waiting if "replaced" in case.kinds else []


def _past_filter(case: Case, waiting: list[int]) -> set[int]:
    """Rows that may have been behind the place of the filter when it was added: they do not pass it."""
    added = "even" in case.after.front and "even" not in case.before.front
    return {number for number in waiting if number % 2} if added and case.before.exchange is not None else set()


def _wrong_rows(case: Case, before: list[Row], since: list[Row], waiting: list[int]) -> Iterator[str]:
    old, new = case.before, case.after
    done = {row["number"] for row in before}
    left = [number for number in everything() if number not in done and ("even" not in new.front or number % 2 == 0)]
    past = _past_filter(case, waiting)
    got = Counter(row["number"] for row in since)
    if Counter(left) - got or any(n not in past or count > 1 for n, count in (got - Counter(left)).items()):
        yield f"{len(since)} rows since the change, {len(left)} must be"
        return
    carried = "reset" not in case.options() or new.name not in case.options()["reset"]
    carried &= old.name == new.name or case.options().get("renamed", {}).get(old.name) == new.name
    ordered = old.exchange == new.exchange or None in {old.exchange, new.exchange}
    for user in range(USERS):
        had = sum(row["user"] == user for row in before)
        mine = sorted(
            (row for row in since if row["user"] == user), key=lambda row: row["number" if ordered else "nth"]
        )
        first = had if carried else 0
        extra = had if carried and old.extra else 0
        for place, row in enumerate(mine, 1):
            must = first + place
            must += EXTRA * (extra + place) if new.extra else 0
            must += SHIFT if "shift" in new.behind else 0
            if row["nth"] != must:
                yield f"user {user}: number {row['number']} is {row['nth']}, must be {must}"
                return


def _wrong_copy(case: Case, before: list[Row], after: list[Row], must: list[int]) -> Iterator[str]:
    numbers = Counter(row["number"] for row in after)
    if case.after.copy and not case.before.copy:
        if numbers != Counter(must):
            yield f"the new output has {len(after)} rows, must have {len(must)}"
    elif case.how == "fork":
        if after and not case.after.copy:
            yield "the output that was removed got rows"
    elif case.before.copy and not case.after.copy and Counter(map(_key, after)) != Counter(map(_key, before)):
        yield "the output that was removed got rows"


def _wrong_totals(case: Case, then: Read, now: Read) -> Iterator[str]:
    old, new = case.before.totals, case.after.totals
    before, after = then("_".join(("totals", *old))), now("_".join(("totals", *new)))
    for user in range(USERS):
        numbers = [number for number in everything() if number % USERS == user]
        had = max((row["n"] for row in before if row["user"] == user), default=0)
        found = max((row for row in after if row["user"] == user), key=lambda row: row["n"], default=None)
        must: Row = {"user": user, "n": len(numbers)}
        if "total" in new:
            must["total"] = sum(numbers if "total" in old else numbers[had:])
        if had < len(numbers) and found != must:
            yield f"totals of user {user} are {found}, must be {must}"
