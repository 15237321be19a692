"""Columns as a checkpoint names them, by name and Arrow type: what a change of them means for rows that are stored.

A wider type holds every value of the narrower one exactly. So stored values can be cast when they are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

Columns: TypeAlias = tuple[tuple[str, str], ...]

_ROWS_OF_TYPES = (("int8", "int16", "int32", "int64"), ("uint8", "uint16", "uint32", "uint64"), ("float", "double"))
_DECIMAL = re.compile(r"decimal(?:128|256)\((?P<digits>\d+), (?P<scale>-?\d+)\)")
_TEXTS = frozenset({"string", "large_string"})


def is_wider(old: str, new: str) -> bool:
    """Whether every value of the type `old` is a value of another type `new`.

    >>> is_wider("int32", "int64"), is_wider("int64", "int32")
    (True, False)
    >>> is_wider("decimal128(10, 2)", "decimal128(12, 2)"), is_wider("decimal128(10, 2)", "decimal128(12, 5)")
    (True, False)
    """
    if any(old in row and new in row and row.index(old) < row.index(new) for row in _ROWS_OF_TYPES):
        return True
    narrow, wide = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    if narrow and wide and old != new:
        scales = int(narrow["scale"]), int(wide["scale"])
        before_point = int(narrow["digits"]) - scales[0], int(wide["digits"]) - scales[1]
        return scales[0] <= scales[1] and before_point[0] <= before_point[1]
    return old != new and {old, new} <= _TEXTS


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """How columns differ, by name; their order does not matter."""

    added: Columns = ()
    removed: Columns = ()
    widened: tuple[tuple[str, str, str], ...] = ()
    """Name, old type, wider type."""
    changed: tuple[tuple[str, str, str], ...] = ()
    """Name, old type, another type that cannot hold it."""

    def __str__(self) -> str:
        parts = [
            _listed("with", (f"{name} {kind}" for name, kind in self.added)),
            _listed("without", (name for name, _ in self.removed)),
            _listed("wider:", (f"{name} {old} to {new}" for name, old, new in self.widened)),
            _listed("another type:", (f"{name} was {old}, is {new}" for name, old, new in self.changed)),
        ]
        return "; ".join(part for part in parts if part)


def _listed(word: str, items: Iterable[str]) -> str:
    text = ", ".join(items)
    return f"{word} {text}" if text else ""


def column_change(old: Columns, new: Columns) -> ColumnChange:
    """
    >>> str(column_change((("a", "int32"), ("b", "string")), (("c", "double"), ("a", "int64"))))
    'with c double; without b; wider: a int32 to int64'
    """
    before, after = dict(old), dict(new)
    both = [(name, before[name], kind) for name, kind in new if name in before and before[name] != kind]
    return ColumnChange(
        added=tuple((name, kind) for name, kind in new if name not in before),
        removed=tuple((name, kind) for name, kind in old if name not in after),
        widened=tuple(item for item in both if is_wider(item[1], item[2])),
        changed=tuple(item for item in both if not is_wider(item[1], item[2])),
    )
