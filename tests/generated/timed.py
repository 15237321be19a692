"""Operations in event time: windows, joins, timers. Nothing closes what the last rows, which move watermarks, open."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import penstock as pen
from tests.generated.aggregates import Aggregates, draw_aggregates
from tests.generated.kinds import INT, LINE, TIME, Columns, schema_of, sql_name, sql_names
from tests.generated.nodes import Check, Facts, Node, Pool, kept

Row = dict[str, Any]
Keys = tuple[str, ...]
START = datetime(2026, 3, 1, tzinfo=UTC)
LIMIT = START + timedelta(days=20)
"""Event times of ordinary rows, and of whatever is made of them, are before."""
LAST = START + timedelta(days=30)
"""The event time of the last row of each source."""
BEFORE_LAST = f"< TIMESTAMPTZ '{LIMIT.isoformat()}'"
BOUNDS = {"window_start": TIME, "window_end": TIME}


def seconds(count: float) -> str:
    return f"{count} s"


@dataclass(frozen=True, slots=True)
class Span:
    """A window: its size and step, or its gap, in seconds."""

    kind: str
    size: int
    every: int = 0
    offset: int = 0

    def ours(self) -> Any:
        match self.kind:
            case "tumbling":
                return pen.tumbling_window(seconds(self.size), offset=seconds(self.offset))
            case "sliding":
                return pen.sliding_window(seconds(self.size), every=seconds(self.every), offset=seconds(self.offset))
        return pen.session_window(seconds(self.size))

    def sql(self, rows: str, keys: Keys, moment: str) -> str:
        """The rows with the windows they are in, as `ws` and `we` in microseconds; `moment` in microseconds."""
        size, every, offset = (part * 1_000_000 for part in (self.size, self.every or self.size, self.offset))
        if self.kind == "session":
            return self._sessions(rows, keys, moment)
        newest = f"({moment} - {offset}) // {every} * {every} + {offset}"
        starts = f"range({newest} - {size - 1} // {every} * {every}, {newest} + 1, {every})"
        every_window = f"SELECT *, {moment} AS us, unnest({starts}) AS ws FROM {rows}"
        return f"SELECT *, ws + {size} AS we FROM ({every_window}) WHERE us < ws + {size}"

    def _sessions(self, rows: str, keys: Keys, moment: str) -> str:
        by, gap = sql_names(keys), self.size * 1_000_000
        timed = f"SELECT *, {moment} AS us FROM {rows}"
        gaps = f"SELECT *, us - lag(us) OVER (PARTITION BY {by} ORDER BY us) AS since FROM ({timed})"
        begun = f"SELECT *, count(*) FILTER (WHERE since IS NULL OR since > {gap}) OVER so_far AS session FROM ({gaps})"
        begun += f" WINDOW so_far AS (PARTITION BY {by} ORDER BY us RANGE UNBOUNDED PRECEDING)"
        whole = f"OVER (PARTITION BY {by}, session)"
        return f"SELECT *, min(us) {whole} AS ws, max(us) {whole} + {gap} AS we FROM ({begun})"


def moment_of(time: str, ends: bool) -> str:
    return f"(epoch_us({sql_name(time)}){' - 1' if ends else ''})"


def _stamp(micros: str) -> str:
    return f"CAST(make_timestamp({micros}) AS TIMESTAMPTZ)"


WINDOW = f"{_stamp('ws')} AS window_start, {_stamp('we')} AS window_end"


@dataclass(frozen=True, slots=True)
class Windowed:
    """`late` is 0 where nothing is late; else the delay of the watermark in seconds, and rows count for the windows
    that they came in time for."""

    keys: Keys
    span: Span
    time: str
    ends: bool
    aggregates: Aggregates
    emit: str
    lateness: int
    late: int
    name: str | None

    def build(self, stream: pen.Stream) -> pen.Stream:
        windows = stream.key_by(*self.keys).window(
            self.span.ours(),
            allowed_lateness=seconds(self.lateness),
            emit=self.emit,  # type: ignore[arg-type]
        )
        return windows.aggregate(self.aggregates.ours(), name=self.name)

    def sql(self, rows: str) -> str:
        keys = sql_names(self.keys)
        in_time = f" WHERE we + {self.lateness * 1_000_000} > mark" if self.late else ""
        windows = self.span.sql(self.judged(rows), self.keys, moment_of(self.time, self.ends))
        if self.emit == "on_close":
            windows = f"SELECT * FROM ({windows}) WHERE us < {int(LIMIT.timestamp() * 1_000_000)}"
        return (
            f"SELECT {keys}, {WINDOW}, {self.aggregates.sql} FROM ({windows}){in_time} GROUP BY {keys}, ws, we"
        )  # fmt: skip

    def judged(self, rows: str) -> str:
        """Rows with an event time, with the watermark at which they arrive as `mark`."""
        return f"({marked(rows, self.time, self.late)} WHERE {sql_name(self.time)} IS NOT NULL)"


def marked(rows: str, time: str, late: int) -> str:
    if not late:
        return f"SELECT * FROM {rows}"
    before = "(ORDER BY mb RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    newest = f"max(epoch_us({sql_name(time)})) OVER {before} - {late * 1_000_000}"
    return f"SELECT * FROM (SELECT *, coalesce({newest}, -9e15::BIGINT) AS mark FROM {rows})"


@dataclass(frozen=True, slots=True)
class Late:
    """The late rows of windows: those whose last window had ended, and those without a time."""

    windowed: Windowed
    columns: Keys

    def build(self, stream: pen.Stream, _: pen.Stream) -> pen.Stream:
        return stream.side("late")

    def sql(self, _: str, rows: str) -> str:
        of, time = self.windowed, sql_name(self.windowed.time)
        windows = of.span.sql(f"({marked(rows, of.time, of.late)} WHERE {time} IS NOT NULL)", of.keys,
                              moment_of(of.time, of.ends))  # fmt: skip
        names = sql_names(self.columns)
        last = f"SELECT n, max(we) AS we, any_value(mark) AS mark FROM ({windows}) GROUP BY n"
        late = f"SELECT n FROM ({last}) WHERE we + {of.lateness * 1_000_000} <= mark"
        return f"SELECT {names} FROM {rows} WHERE n IN ({late}) OR {time} IS NULL"

    def __repr__(self) -> str:
        return "side('late')"


@dataclass(frozen=True, slots=True)
class WindowTop:
    keys: Keys
    span: Span
    time: str
    ends: bool
    count: int
    by: str
    ascending: bool
    order: tuple[str, ...]
    columns: Keys
    name: str | None

    def build(self, stream: pen.Stream) -> pen.Stream:
        return stream.key_by(*self.keys).top_n(
            self.count, by=self.by, ascending=self.ascending, window=self.span.ours(), name=self.name
        )

    def sql(self, rows: str) -> str:
        known = f"(SELECT * FROM {rows} WHERE {sql_name(self.time)} {BEFORE_LAST})"
        windows = self.span.sql(known, self.keys, moment_of(self.time, self.ends))
        direction = "" if self.ascending else " DESC"
        best = f"{sql_name(self.by)}{direction}, {sql_names(self.order)}"
        place = f"row_number() OVER (PARTITION BY {sql_names(self.keys)}, ws, we ORDER BY {best}) AS rank"
        ranked = f"SELECT *, {place} FROM ({windows}) WHERE {sql_name(self.by)} IS NOT NULL"
        return f"SELECT {sql_names(self.columns)}, {WINDOW}, rank FROM ({ranked}) WHERE rank <= {self.count}"


@dataclass(frozen=True, slots=True)
class Join:
    left: Keys
    right: Keys
    times: tuple[str, str]
    lower: int
    upper: int
    how: str
    suffixes: tuple[str, str]
    when: str | None
    names: tuple[tuple[str, str, str], ...]
    """Of each column: its name, and what it is called on the left and on the right."""
    name: str | None

    def build(self, left: pen.Stream, right: pen.Stream) -> pen.Stream:
        return left.key_by(*self.left).join(
            right.key_by(*self.right),
            within=(seconds(self.lower), seconds(self.upper)),
            how=self.how,  # type: ignore[arg-type]
            suffixes=self.suffixes,
            event_time=self.when,
            name=self.name,
        )

    def sql(self, left: str, right: str) -> str:
        left_time, right_time = (f"{side}.{sql_name(time)}" for side, time in zip("lr", self.times, strict=True))
        close = (
            f"{right_time} BETWEEN {left_time} + INTERVAL '{self.lower} seconds' "
            f"AND {left_time} + INTERVAL '{self.upper} seconds'"
        )
        pairs = zip(self.left, self.right, strict=True)
        on = " AND ".join([*(f"l.{sql_name(a)} = r.{sql_name(b)}" for a, b in pairs), close])
        columns = [f"{_from(mine, theirs)} AS {sql_name(name)}" for name, mine, theirs in self.names]
        if self.when is not None:
            alone = (
                f"{left_time} + INTERVAL '{max(self.upper, 0)} seconds'",
                f"{right_time} + INTERVAL '{max(-self.lower, 0)} seconds'",
            )
            columns.append(
                f"CASE WHEN {left_time} IS NULL THEN {alone[1]} WHEN {right_time} IS NULL THEN {alone[0]} "
                f"ELSE greatest({left_time}, {right_time}) END AS {sql_name(self.when)}"
            )
        # A last row without a match waits for ever, unless it has no key.
        keyed = [" AND ".join(f"{side}.{sql_name(key)} IS NOT NULL" for key in keys)
                 for side, keys in (("l", self.left), ("r", self.right))]  # fmt: skip
        waits = (
            f"({left_time} IS NULL AND {keyed[1]} AND NOT {right_time} {BEFORE_LAST}) OR "
            f"({right_time} IS NULL AND {keyed[0]} AND NOT {left_time} {BEFORE_LAST})"
        )
        joined = f"FROM {left} AS l {self.how} JOIN {right} AS r ON {on}"
        return f"SELECT {', '.join(columns)} {joined} WHERE NOT ({waits})"


def _from(mine: str, theirs: str) -> str:
    if mine and theirs:
        return f"coalesce(l.{sql_name(mine)}, r.{sql_name(theirs)})"
    return f"l.{sql_name(mine)}" if mine else f"r.{sql_name(theirs)}"


class Ringing(pen.KeyedProcess):
    """A timer for each row, a second after it, or after a while; numbers them as they fire."""

    output: ClassVar[Any]
    keys: ClassVar[Keys]
    time: ClassVar[str | None]
    fired = pen.value_state("bigint")

    def process(self, key: Row, rows: list[Row], state: Any, out: Any, timers: Any) -> None:
        for row in rows:
            if self.time is None:
                timers.after(f"{1 + row['n'] % 5} s", str(row["n"]))
            else:
                timers.at(row[self.time] + timedelta(seconds=1), str(row["n"]))

    def on_timer(self, key: Row, time: datetime, state: Any, out: Any, timers: Any) -> None:
        state.fired = (state.fired or 0) + 1
        made = {name: key[name] for name in self.keys}
        out.emit(**made, rang=int(timers.name), nth=state.fired)


@dataclass(frozen=True, slots=True)
class Ring:
    keys: Keys
    time: str | None
    columns: Columns
    name: str | None

    def build(self, stream: pen.Stream) -> pen.Stream:
        parts = {"output": schema_of(self.columns), "keys": self.keys, "time": self.time}
        return stream.key_by(*self.keys).process(type("Ringing", (Ringing,), parts), name=self.name)

    def sql(self, rows: str) -> str:
        heard = "" if self.time is None else f" WHERE {sql_name(self.time)} {BEFORE_LAST}"
        return f"SELECT DISTINCT ON ({sql_names(self.keys)}, n) {sql_names(self.keys)}, n AS rang FROM {rows}{heard}"

    def check(self) -> Check:
        """Numbers of a key are 1, 2, 3 …"""
        place = f"row_number() OVER (PARTITION BY {sql_names(self.keys)} ORDER BY nth) AS place"
        return Check(f"SELECT * FROM (SELECT *, {place} FROM out) WHERE place <> nth", ("nth",))

    def __repr__(self) -> str:
        return f"key_by{self.keys}.process(Ring, {self.time}, name={self.name!r})"


# -- drawing ---------------------------------------------------------------------------------------------------------


def draw_span(pool: Pool) -> Span:
    chance = pool.chance
    match chance.choice(("tumbling", "sliding", "session")):
        case "tumbling":
            return Span("tumbling", chance.choice((1, 5, 10, 60)), offset=chance.choice((0, 0, 3)))
        case "sliding":
            size = chance.choice((4, 10, 12))
            return Span("sliding", size, chance.choice((1, 2, 3, size)), chance.choice((0, 1)))
    return Span("session", chance.choice((1, 2, 7)))


def draw_window(pool: Pool) -> Node | None:
    node = pool.one(lambda node: node.timed)
    if node is None or node.facts.time is None:
        return None
    span, late = draw_span(pool), node.facts.late
    if late and span.kind == "session":
        return None  # which rows a session has depends on which were in time
    keys = pool.keys(node)
    if not keys or set(BOUNDS) & set(keys):
        return None
    # Sliding windows and sessions go by panes and by parts first, which is not simply the order of arrival.
    order = node.facts.order if node.facts.ordered_for(keys) and span.kind == "tumbling" else ()
    aggregates = draw_aggregates(pool.chance, node.columns, order)
    columns = {**kept(node.columns, keys), **BOUNDS, **aggregates.columns(node.columns)}
    if len(columns) < len(keys) + 3 + len(aggregates.parts):
        return None
    emit = "on_update" if span.kind != "session" and pool.chance.random() < 0.2 else "on_close"
    lateness = pool.chance.choice((0, 0, 5)) if span.kind != "session" else 0
    op = Windowed(keys, span, node.facts.time, node.facts.ends, aggregates, emit, lateness, late, pool.name("window"))
    if emit == "on_update" or (late and lateness):
        facts = Facts(node.facts.size, updated=(*keys, *BOUNDS), newest=("rows",))
    else:
        facts = Facts(node.facts.size * (3 if span.kind == "sliding" else 1), time="window_end", ends=True)
    made = pool.add(Node(op, (node,), columns, facts))
    if late and pool.chance.random() < 0.7:
        side = Late(op, tuple(node.columns))
        pool.add(Node(side, (made, node), dict(node.columns), Facts(node.facts.size)))
    return made


def draw_window_top(pool: Pool) -> Node | None:
    node = pool.one(lambda node: node.timed and node.ordered)
    keys = () if node is None else pool.keys(node)
    if node is None or node.facts.time is None or node.facts.late or not keys:
        return None
    span = Span("tumbling", pool.chance.choice((5, 10, 60)), offset=pool.chance.choice((0, 3)))
    if not node.facts.ordered_for(keys) or {"rank", *BOUNDS} & set(node.columns):
        return None
    fitting = [name for name in node.where("adds") if name not in keys]
    if not fitting:
        return None
    by = pool.chance.choice(fitting)
    op = WindowTop(
        keys, span, node.facts.time, node.facts.ends, pool.chance.randint(1, 4), by, pool.chance.random() < 0.5,
        node.facts.order, tuple(node.columns), pool.name("best"),
    )  # fmt: skip
    columns = {**kept(node.columns, keys), **BOUNDS, "rank": INT, **node.columns}
    return pool.add(Node(op, (node,), columns, Facts(node.facts.size)))


def draw_join(pool: Pool) -> Node | None:
    """Of two streams, or of one with itself."""
    left = pool.one(_joins, size=250)
    if left is None or not _joins(left):
        return None
    partners = [node for node in pool.nodes if _joins(node) and node.facts.size <= 250]
    right = left if pool.chance.random() < 0.4 else pool.chance.choice(partners)
    left_keys = pool.keys(left)
    right_keys = tuple(_partner(pool, left, right, key) for key in left_keys)
    if not left_keys or "" in right_keys or len(set(right_keys)) < len(right_keys):
        return None
    suffixes = pool.chance.choice((("", "_right"), ("_l", "_r")))
    named = _names(left, right, left_keys, right_keys, suffixes)
    columns = {name: left.columns[mine] if mine else right.columns[theirs] for name, mine, theirs in named}
    when = "joined_at" if pool.chance.random() < 0.5 and "joined_at" not in columns else None
    if len(columns) < len(named):
        return None
    lower, upper = sorted((pool.chance.randint(-4, 3), pool.chance.randint(-1, 5)))
    how = pool.chance.choice(("inner", "left", "right", "full"))
    times = (str(left.facts.time), str(right.facts.time))
    op = Join(left_keys, right_keys, times, lower, upper, how, suffixes, when, named, pool.name("join"))
    facts = Facts(left.facts.size * right.facts.size // 6 + 50, time=when)
    return pool.add(Node(op, (left, right), {**columns, **({when: TIME} if when else {})}, facts))


def _joins(node: Node) -> bool:
    facts = node.facts
    return node.ordinary and facts.time is not None and not (facts.ends or facts.updated or facts.late)


def _partner(pool: Pool, left: Node, right: Node, key: str) -> str:
    fitting = [name for name, kind in right.columns.items() if kind == left.columns[key]]
    if key in fitting and pool.chance.random() < 0.8:
        return key
    return pool.chance.choice(fitting) if fitting else ""


def _names(
    left: Node, right: Node, left_keys: Keys, right_keys: Keys, suffixes: tuple[str, str]
) -> tuple[tuple[str, str, str], ...]:
    common = left_keys if left_keys == right_keys else ()
    both = (set(left.columns) & set(right.columns)) - set(common)
    mine = [
        (name + suffixes[0] if name in both else name, name, name if name in common else "") for name in left.columns
    ]
    theirs = [(name + suffixes[1] if name in both else name, "", name) for name in right.columns if name not in common]
    return (*mine, *theirs)


def draw_ring(pool: Pool) -> Node | None:
    node = pool.one(lambda node: node.columns.get("n") == LINE and node.facts.order in ((), ("n",)), size=400)
    keys = () if node is None else pool.keys(node)
    if node is None or not keys or {"rang", "nth"} & set(keys):
        return None
    time = node.facts.time
    if node.facts.late or (time is None and pool.on_spark):
        return None
    if time is not None and (node.facts.ends or (not pool.on_spark and pool.chance.random() < 0.3)):
        time = None
    if time is None and pool.on_spark:
        return None
    if time is not None and node.facts.order != ("n",):
        return None  # rows of one number would have one timer, at one of several moments
    columns = {**kept(node.columns, keys), "rang": LINE, "nth": LINE}
    op = Ring(keys, time, columns, pool.name("ring"))
    return pool.add(Node(op, (node,), columns, Facts(node.facts.size), check=op.check(), ordinary=False))
