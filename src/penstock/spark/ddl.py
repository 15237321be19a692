"""The common part of Spark's DDL, read without a session, so that pipelines can be built and tested without a JVM.

What is not known here (collations, intervals, comments) is left to Spark.
"""

from __future__ import annotations

import re

from pyspark.sql import types as T

_TOKENS = re.compile(r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<word>\w+)|(?P<mark>[<>(),:]))")
_SIMPLE: dict[str, T.DataType] = {
    "tinyint": T.ByteType(), "byte": T.ByteType(), "smallint": T.ShortType(), "short": T.ShortType(),
    "int": T.IntegerType(), "integer": T.IntegerType(), "bigint": T.LongType(), "long": T.LongType(),
    "float": T.FloatType(), "real": T.FloatType(), "double": T.DoubleType(), "string": T.StringType(),
    "boolean": T.BooleanType(), "binary": T.BinaryType(), "date": T.DateType(), "timestamp": T.TimestampType(),
    "timestamp_ltz": T.TimestampType(), "timestamp_ntz": T.TimestampNTZType(),
}  # fmt: skip
_DECIMALS = ("decimal", "dec", "numeric")


def parse(text: str) -> T.DataType | None:
    """A type, or a struct for a list of columns; None for what only Spark can read.

    >>> parse("user bigint, tags array<string>").simpleString()
    'struct<user:bigint,tags:array<string>>'
    """
    try:
        tokens = _tokens(text)
        try:
            return _Parser(tokens).whole_type()
        except _Unknown:
            return _Parser(tokens).whole_columns()
    except _Unknown:
        return None


class _Unknown(Exception):
    """Not in our part of the language."""


def _tokens(text: str) -> list[str]:
    tokens, place = [], 0
    text = text.rstrip()
    while place < len(text):
        found = _TOKENS.match(text, place)
        if found is None:
            raise _Unknown
        tokens.append(found.group().strip())
        place = found.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens, self._place = tokens, 0

    def whole_type(self) -> T.DataType:
        found = self._type()
        self._end()
        return found

    def whole_columns(self) -> T.StructType:
        columns = self._columns()
        self._end()
        return T.StructType(columns)

    def _columns(self) -> list[T.StructField]:
        columns = [self._column()]
        while self._next_is(","):
            columns.append(self._column())
        return columns

    def _column(self) -> T.StructField:
        name = self._take()
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        elif not re.fullmatch(r"\w+", name):
            raise _Unknown
        self._next_is(":")
        kind = self._type()
        nullable = not self._next_is("not")
        if not nullable:
            self._want("null")
        return T.StructField(name, kind, nullable)

    def _type(self) -> T.DataType:
        name = self._take().lower()
        if name in _SIMPLE:
            return _SIMPLE[name]
        if name in _DECIMALS:
            return self._decimal()
        if name not in ("array", "map", "struct"):
            raise _Unknown
        self._want("<")
        found: T.DataType
        if name == "array":
            found = T.ArrayType(self._type())
        elif name == "map":
            key = self._type()
            self._want(",")
            found = T.MapType(key, self._type())
        else:
            found = T.StructType(self._columns())
        self._want(">")
        return found

    def _decimal(self) -> T.DecimalType:
        if not self._next_is("("):
            return T.DecimalType(10, 0)
        precision, scale = self._number(), 0
        if self._next_is(","):
            scale = self._number()
        self._want(")")
        if not scale <= precision <= 38:
            raise _Unknown
        return T.DecimalType(precision, scale)

    def _number(self) -> int:
        text = self._take()
        if not text.isdecimal():
            raise _Unknown
        return int(text)

    def _take(self) -> str:
        if self._place == len(self._tokens):
            raise _Unknown
        self._place += 1
        return self._tokens[self._place - 1]

    def _want(self, token: str) -> None:
        if self._take().lower() != token:
            raise _Unknown

    def _next_is(self, token: str) -> bool:
        there = [text.lower() for text in self._tokens[self._place : self._place + 1]] == [token]
        self._place += there
        return there

    def _end(self) -> None:
        if self._place < len(self._tokens):
            raise _Unknown
