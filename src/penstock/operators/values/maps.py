"""Maps are dicts for users and pairs for pyarrow, however deep inside a value they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

Change: TypeAlias = Callable[[Any], Any]


def with_dicts(values: list[Any], kind: pa.DataType) -> list[Any]:
    """Values as pyarrow gives them, with dicts for maps.

    >>> with_dicts([[("a", 1)], None], pa.map_(pa.string(), pa.int64()))
    [{'a': 1}, None]
    """
    change = _change(kind, _as_dict)
    return values if change is None else list(map(change, values))


def with_pairs(values: Sequence[Any], kind: pa.DataType) -> Sequence[Any]:
    """Values as users give them, with pairs for maps."""
    change = _change(kind, _as_pairs)
    return values if change is None else list(map(change, values))


@lru_cache(maxsize=256)
def _change(kind: pa.DataType, at_map: Callable[[Any, Change | None], Any]) -> Change | None:
    """The conversion for values of this type; None if they contain no maps."""
    if pt.is_map(kind):
        if pt.is_nested(kind.key_type):
            return None  # a nested value cannot be the key of a dict
        of_items = _change(kind.item_type, at_map)
        return lambda value: None if value is None else at_map(value, of_items)
    if pt.is_struct(kind):
        changes = {part.name: change for part in kind if (change := _change(part.type, at_map)) is not None}
        return (lambda value: _of_struct(value, changes)) if changes else None
    if pt.is_nested(kind) and hasattr(kind, "value_type"):
        of_items = _change(kind.value_type, at_map)
        if of_items is not None:
            return lambda value: None if value is None else list(map(of_items, value))
    return None


def _of_struct(value: Any, changes: Mapping[str, Change]) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {**value, **{name: change(value[name]) for name, change in changes.items() if name in value}}


def _as_dict(pairs: Any, of_items: Change | None) -> dict[Any, Any]:
    return dict(pairs) if of_items is None else {key: of_items(item) for key, item in pairs}


def _as_pairs(value: Any, of_items: Change | None) -> list[Any]:
    pairs = list(value.items() if isinstance(value, Mapping) else value)
    return pairs if of_items is None else [(key, of_items(item)) for key, item in pairs]
