"""Reads a scalar expression in SQL into an Arrow expression over the columns of a stream.

A subset of Spark SQL: columns, literals, arithmetic, comparisons, AND, OR, NOT, IS NULL, IN, BETWEEN, LIKE, CASE, CAST
and the functions of `functions.py`. Whatever else there is, is refused by name; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from penstock.operators.columns import describe
from penstock.operators.sql.functions import (
    MOMENT,
    Days,
    arithmetic,
    called,
    comparison,
    guard_of,
    guarded,
    is_true,
    like,
    literal,
    literal_of_time,
    one_of,
    only_where,
)
from penstock.operators.sql.numbers import Value, alike, cast
from penstock.operators.sql.tokens import SqlError, Token, tokens_of

Types = Callable[[str], pa.DataType]
"""Spark's name of a type, such as ``decimal(10,2)``, as Arrow's type."""

_SPANS = {"DAY": 86_400.0, "HOUR": 3600.0, "MINUTE": 60.0, "SECOND": 1.0, "MILLISECOND": 1e-3}
_RESERVED = frozenset({
    "AND", "OR", "NOT", "IS", "IN", "BETWEEN", "LIKE", "RLIKE", "CASE", "WHEN", "THEN", "ELSE", "END", "AS", "CAST",
    "DIV", "SELECT", "FROM", "WHERE", "GROUP", "ORDER", "OVER",
})  # fmt: skip
_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1


def expression_of(sql: str, schema: pa.Schema, types: Types) -> pc.Expression:
    """Raises: `SqlError`."""
    parser = _Parser(sql, schema, types)
    value = parser.either()
    parser.end()
    return value.made


def item_of(sql: str, schema: pa.Schema, types: Types) -> tuple[str, pc.Expression]:
    """An item of a SELECT list: a name and its expression, of ``amount * 2 AS twice`` or ``amount``.

    Raises: `SqlError`.
    """
    parser = _Parser(sql, schema, types)
    first = parser.ahead()
    value = parser.either()
    if parser.takes_word("AS"):
        name = parser.name()
    elif first.kind in ("word", "quoted") and parser.used == 1:
        name = first.text
    else:
        raise SqlError("an expression needs a name: write … AS name")
    parser.end()
    return name, value.made


class _Parser:
    """One recursive function per level of precedence, the loosest first."""

    def __init__(self, sql: str, schema: pa.Schema, types: Types) -> None:
        self._tokens, self.used = tokens_of(sql), 0
        self._schema, self._types = schema, types
        self._guard: pc.Expression | None = None
        """Where the value that is read now is looked at, in a branch of CASE for example. Arrow computes it everywhere,
        so what could fail gets nulls elsewhere."""

    # -- tokens --------------------------------------------------------------------------------------------------

    def ahead(self, distance: int = 0) -> Token:
        return self._tokens[min(self.used + distance, len(self._tokens) - 1)]

    def _next(self) -> Token:
        token = self.ahead()
        self.used += 1
        return token

    def takes_word(self, *words: str) -> bool:
        found = self.ahead().is_word(*words)
        self.used += found
        return found

    def _takes_symbol(self, *symbols: str) -> bool:
        found = self.ahead().is_symbol(*symbols)
        self.used += found
        return found

    def _need(self, what: str) -> None:
        if not (self.takes_word(what) or self._takes_symbol(what)):
            raise self._unexpected(f"wanted {what}")

    def _unexpected(self, wanted: str) -> SqlError:
        token = self.ahead()
        found = "the end" if token.kind == "end" else repr(token.text)
        return SqlError(f"{wanted}, found {found} at character {token.place + 1}")

    def end(self) -> None:
        """Raises: `SqlError` if there is more."""
        if self.ahead().kind != "end":
            raise self._unexpected("wanted an operator or the end")

    def name(self) -> str:
        if self.ahead().kind not in ("word", "quoted"):
            raise self._unexpected("wanted a name")
        return self._next().text

    # -- levels --------------------------------------------------------------------------------------------------

    def either(self) -> Value:
        value = self._both()
        while self.takes_word("OR"):
            other = self._where(~is_true(value.made), self._both)
            value = self._value(value.made | other.made)
        return value

    def _both(self) -> Value:
        value = self._negation()
        while self.takes_word("AND"):
            other = self._where(pc.coalesce(value.made, pc.scalar(True)), self._negation)
            value = self._value(value.made & other.made)
        return value

    def _where(self, guard: pc.Expression | None, read: Callable[[], Value]) -> Value:
        """Reads what is only looked at where `guard` is true."""
        outer = self._guard
        if guard is not None:
            self._guard = guard if outer is None else outer & guard
        value = read()
        self._guard = outer
        return value

    def _safe(self, value: Value) -> Value:
        return value if self._guard is None else only_where(self._guard, value)

    def _negation(self) -> Value:
        if self.takes_word("NOT"):
            return self._value(~self._negation().made)
        return self._predicate()

    def _predicate(self) -> Value:
        value = self._sum()
        while True:
            token = self.ahead()
            if token.is_symbol("=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>"):
                symbol = self._next().text
                value = self._value(comparison(symbol, value, self._sum()))
            elif self.takes_word("IS"):
                value = self._value(self._is(value))
            elif token.is_word("IN", "BETWEEN", "LIKE", "RLIKE") or (
                token.is_word("NOT") and self.ahead(1).is_word("IN", "BETWEEN", "LIKE", "RLIKE")
            ):
                negated = self.takes_word("NOT")
                made = self._among(self._next().text.upper(), value)
                value = self._value(~made if negated else made)
            else:
                return value

    def _is(self, value: Value) -> pc.Expression:
        negated = self.takes_word("NOT")
        if self.takes_word("NULL"):
            made = value.made.is_null()
        elif self.takes_word("TRUE"):
            made = pc.coalesce(value.made, pc.scalar(False))
        elif self.takes_word("FALSE"):
            made = pc.coalesce(~value.made, pc.scalar(False))
        else:
            raise self._unexpected("wanted NULL, TRUE or FALSE")
        return ~made if negated else made

    def _among(self, word: str, value: Value) -> pc.Expression:
        if word == "IN":
            self._need("(")
            return one_of(value, self._arguments())
        if word == "BETWEEN":
            low = self._sum()
            self._need("AND")
            return comparison(">=", value, low) & comparison("<=", value, self._sum())
        pattern = self._sum().literal
        if not isinstance(pattern, str):
            raise SqlError(f"the pattern of {word} must be written out as text")
        return like(value.made, pattern) if word == "LIKE" else pc.match_substring_regex(value.made, pattern)

    def _sum(self) -> Value:
        value = self._product()
        while True:
            if self._takes_symbol("||"):
                value = self._value(called("concat", [value, self._product()]))
            elif self.ahead().is_symbol("+", "-"):
                value = self._value(self._computed(self._next().text, value, self._product()))
            else:
                return value

    def _product(self) -> Value:
        value = self._signed()
        while self.ahead().is_symbol("*", "/", "%") or self.ahead().is_word("DIV"):
            value = self._value(self._computed(self._next().text.upper(), value, self._signed()))
        return value

    def _computed(self, symbol: str, left: Value, right: Value) -> pc.Expression:
        if self._guard is None:
            return arithmetic(symbol, left, right)
        # Literals decide about types, so the other operand gets the nulls.
        if left.literal is None:
            return arithmetic(symbol, self._safe(left), right)
        return arithmetic(symbol, left, self._safe(right))

    def _signed(self) -> Value:
        if self._takes_symbol("+"):
            return self._signed()
        if not self._takes_symbol("-"):
            return self._atom()
        if self.ahead().kind == "number":
            return _number("-" + self._next().text)
        value = self._signed()
        if isinstance(value.literal, int | float):
            return literal(-value.literal, value.kind)
        return self._value(pc.negate_checked(self._safe(value).made))

    # -- atoms ---------------------------------------------------------------------------------------------------

    def _atom(self) -> Value:
        token = self.ahead()
        if token.kind == "end" or (token.kind == "symbol" and token.text != "("):
            raise self._unexpected("wanted a column or a value")
        if self._takes_symbol("("):
            value = self.either()
            self._need(")")
            return value
        if token.kind == "number":
            return _number(self._next().text)
        if token.kind == "text":
            return literal(self._next().text, pa.string())
        if token.kind == "word":
            known = self._keyword(token)
            if known is not None:
                return known
            if self.ahead(1).is_symbol("("):
                self.used += 2
                arguments = self._arguments(guard_of(token.text))
                if self._guard is not None:
                    arguments = guarded(token.text, self._guard, arguments)
                return self._value(called(token.text, arguments))
        return self._column()

    def _keyword(self, token: Token) -> Value | None:
        """A value that begins with a word of SQL; None if the word is a name."""
        word, following = token.text.upper(), self.ahead(1)
        if word in ("TRUE", "FALSE"):
            self.used += 1
            return literal(word == "TRUE", pa.bool_())
        if word == "NULL":
            self.used += 1
            return literal(None, pa.null())
        if word == "CASE":
            self.used += 1
            return self._case()
        if word == "CAST" and following.is_symbol("("):
            self.used += 2
            return self._cast()
        if word in ("DATE", "TIMESTAMP") and following.kind == "text":
            self.used += 2
            kind = pa.date32() if word == "DATE" else MOMENT
            return literal_of_time(following.text, kind)
        if word == "INTERVAL" and following.kind in ("text", "number"):
            self.used += 2
            return self._interval(following)
        if word in _RESERVED:
            raise self._unexpected("wanted a column or a value")
        return None

    def _arguments(self, guard: Callable[[list[Value]], pc.Expression | None] | None = None) -> list[Value]:
        """Up to the closing parenthesis. `guard` says of earlier arguments where the next one is looked at."""
        found: list[Value] = []
        if self._takes_symbol(")"):
            return found
        while True:
            found.append(self._where(None if guard is None else guard(found), self.either))
            if self._takes_symbol(")"):
                return found
            self._need(",")

    def _case(self) -> Value:
        subject = None if self.ahead().is_word("WHEN") else self.either()
        conditions: list[pc.Expression] = []
        values: list[Value] = []
        before: pc.Expression | None = None  # where no condition so far was true
        while self.takes_word("WHEN"):
            condition = self._where(before, self.either)
            made = condition.made if subject is None else comparison("=", subject, condition)
            conditions.append(is_true(made))
            self._need("THEN")
            here = conditions[-1] if before is None else before & conditions[-1]
            values.append(self._where(here, self.either))
            before = ~conditions[-1] if before is None else before & ~conditions[-1]
        if not conditions:
            raise self._unexpected("wanted WHEN")
        values.append(self._where(before, self.either) if self.takes_word("ELSE") else literal(None, pa.null()))
        self._need("END")
        *branches, chosen = alike(*values)
        for condition_made, branch in zip(reversed(conditions), reversed(branches), strict=True):
            chosen = pc.if_else(condition_made, branch, chosen)
        return self._value(chosen)

    def _cast(self) -> Value:
        value = self.either()
        self._need("AS")
        words: list[str] = []
        depth = 0
        while depth or not self.ahead().is_symbol(")"):
            token = self._next()
            if token.kind == "end":
                raise SqlError("wanted ) behind the type of CAST, found the end")
            depth += token.is_symbol("(") - token.is_symbol(")")
            words.append(token.text)
        self.used += 1
        return self._value(cast(self._safe(value), self._types(" ".join(words))))

    def _interval(self, amount: Token) -> Value:
        unit = self.name().upper()
        unit = unit.removesuffix("S")
        try:
            seconds = float(amount.text) * _SPANS[unit]
        except (KeyError, ValueError):
            known = ", ".join(_SPANS)
            raise SqlError(f"INTERVAL {amount.text!r} {unit}: write a number and one of {known}") from None
        return literal((Days if unit == "DAY" else timedelta)(seconds=seconds), pa.duration("us"))

    def _column(self) -> Value:
        path = [self.name()]
        while self._takes_symbol("."):
            path.append(self.name())
        whole = ".".join(path)
        if whole in self._schema.names:
            path = [whole]
        else:
            path[0] = self._matching(path[0])
        made = pc.field(path[0]) if len(path) == 1 else pc.field(*path)
        value = self._value(made)
        if pa.types.is_timestamp(value.kind) and value.kind.tz not in (None, "UTC"):
            # Arrow would give the hours of that zone; our Spark jobs are in UTC.
            return self._value(made.cast(pa.timestamp(value.kind.unit, "UTC")))
        return value

    def _matching(self, name: str) -> str:
        """As Spark does it, the case of letters does not matter if only one column fits."""
        names = self._schema.names
        fitting = [name] if name in names else [known for known in names if known.lower() == name.lower()]
        if len(fitting) != 1:
            said = "there is no column" if not fitting else "there is more than one column"
            raise SqlError(f"{said} {name!r}; columns are {', '.join(names)}")
        return fitting[0]

    def _value(self, made: pc.Expression) -> Value:
        try:
            kind = computed(_one_row(self._schema), {"made": made}).schema.field(0).type
        except (pa.ArrowException, TypeError) as error:
            said = str(error).partition("\n")[0]
            raise SqlError(f"{made} cannot be computed of {describe(self._schema)}: {said}") from None
        if pa.types.is_decimal256(kind):
            raise SqlError(f"{made} needs a decimal of more than 38 digits: {kind}")
        return Value(made, kind)


def computed(table: pa.Table, expressions: Mapping[str, pc.Expression]) -> pa.Table:
    """The columns that `expressions` make of a table, its rows in the same order."""
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    columns = acero.ProjectNodeOptions(list(expressions.values()), list(expressions))
    return acero.Declaration.from_sequence([source, acero.Declaration("project", columns)]).to_table(use_threads=False)


def _one_row(schema: pa.Schema) -> pa.Table:
    """Of nulls: some kernels look at types only when there is a row."""
    return pa.table([pa.nulls(1, field.type) for field in schema], schema.names)


def _number(text: str) -> Value:
    """A number with a point or an exponent is a double."""
    if not text.removeprefix("-").isdigit():
        return literal(float(text), pa.float64())
    whole = int(text)
    if not -_LONG_MAX - 1 <= whole <= _LONG_MAX:
        raise SqlError(f"{text} does not fit a bigint")
    return literal(whole, pa.int32() if -_INT_MAX - 1 <= whole <= _INT_MAX else pa.int64())
