"""Makes docs/reference/api.md of the public names and their docstrings.

``python scripts/api_page.py > docs/reference/api.md``
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from types import ModuleType
from typing import Any

import penstock
import penstock.events
import penstock.sinks
import penstock.testing

_GROUPS = {
    "Sessions, sources, start": ("penstock.spark.session", "penstock.api.read", "penstock.api.outputs:start"),
    "Streams": ("penstock.api",),
    "Queries": ("penstock.engine",),
    "Looking inside": ("penstock.observe.tables", "penstock.spark.data_source"),
    "Aggregates": ("penstock.operators.aggregate.functions",),
    "Windows": ("penstock.operators.window",),
    "Your own code": ("penstock.operators",),
    "Sinks": ("penstock.sinks",),
    "Errors": ("penstock.errors",),
}
"""Headings, and where the names under them are defined; the first that fits counts."""

_INTRODUCTION = """\
# API

Generated from the docstrings by `python scripts/api_page.py`. Do not edit.

`import penstock as pen` has all names of this page; those of `penstock.events`, `penstock.sinks` and `penstock.testing`
come last. Names with an underscore, and modules that are not named here, are not part of the API.
[Guides](../guides/index.md) show how the names are used.
"""

_WIDTH = 100
_MADE_BY_METHODS = ("Streams", "Queries")
"""Groups of classes that users never make themselves."""


class _Unquoted(str):
    """An annotation that is printed as it was written."""

    __slots__ = ()
    __repr__ = str.__str__


def api_page() -> str:
    """The page: groups of names, each with its signature and docstring, classes with their public members."""
    grouped: dict[str, list[str]] = {heading: [] for heading in _GROUPS}
    for name in (name for name in penstock.__all__ if not inspect.ismodule(getattr(penstock, name))):
        grouped[_group_of(getattr(penstock, name))].append(name)
    parts = [_INTRODUCTION]
    for heading, names in grouped.items():
        parts += [f"## {heading}\n", *(_entry(penstock, name) for name in names)]
    parts += ["## Events\n", _prose(penstock.events)]
    parts += [_entry(penstock.events, name) for name in penstock.events.__all__ if name != "Event"]
    parts += ["## Sinks of your own\n", *(_entry(penstock.sinks, name) for name in penstock.sinks.__all__)]
    parts += ["## Testing\n", *(_entry(penstock.testing, name) for name in penstock.testing.__all__)]
    return "\n".join(parts)


def _group_of(what: Any) -> str:
    place = f"{what.__module__}:{what.__name__}"
    for heading, homes in _GROUPS.items():
        if any(place.startswith(home) for home in homes):
            return heading
    raise LookupError(f"no group of the page holds {place}: add one to _GROUPS")


def _entry(module: ModuleType, name: str) -> str:
    what = getattr(module, name)
    prefix = "pen" if module is penstock else module.__name__
    made = inspect.isclass(what) and module is penstock and _group_of(what) in _MADE_BY_METHODS
    lines = [f"### {name}\n", _code(f"{prefix}.{name}{'' if made else _signature(what)}"), _prose(what)]
    if inspect.isclass(what):
        lines += [_member(name, member, value) for member, value in _members(what)]
    return "\n".join(lines)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties, of base classes of ours, too, in the order of the source."""
    seen: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("penstock"):
            seen |= {name: value for name, value in vars(base).items() if not name.startswith("_")}
    for name, value in seen.items():
        if inspect.getdoc(value) and (isinstance(value, property | classmethod) or inspect.isroutine(value)):
            yield name, value


def _member(owner: str, name: str, value: Any) -> str:
    if isinstance(value, property):
        return f"**`{owner}.{name}`** (property)\n\n{_prose(value)}"
    function = value.__func__ if isinstance(value, classmethod) else value
    return f"{_code(f'{owner}.{name}{_signature(function)}')}\n{_prose(function)}"


def _signature(what: Any) -> str:
    if hasattr(what, "__struct_fields__"):
        return _fields(what)
    if inspect.isclass(what) and what.__init__ in (object.__init__, Exception.__init__):
        return ""
    if hasattr(what, "__supertype__"):
        return f"(number: {what.__supertype__.__name__})"
    if getattr(what, "_is_protocol", False) or (inspect.isclass(what) and issubclass(what, Enum)):
        return ""
    signature = inspect.signature(what)
    shown = [
        parameter.replace(
            annotation=_plain(parameter.annotation),
            default=_Unquoted("...") if inspect.isfunction(parameter.default) else parameter.default,
        )
        for parameter in signature.parameters.values()
        if parameter.name not in ("self", "cls") and not parameter.name.startswith("_")
    ]
    returns = inspect.Signature.empty if inspect.isclass(what) else _plain(signature.return_annotation)
    short = str(signature.replace(parameters=shown, return_annotation=returns))
    if len(short) <= _WIDTH:
        return short
    one_per_line = ",\n    ".join(_arguments(short))
    return f"(\n    {one_per_line},\n){short[_end(short) + 1 :]}"


def _fields(event: Any) -> str:
    """What an event has, with types as they are written; users never make one, so defaults are left out."""
    written = {
        name: text for base in reversed(event.__mro__) for name, text in vars(base).get("__annotations__", {}).items()
    }
    return "(\n    " + ",\n    ".join(f"{name}: {written[name]}" for name in event.__struct_fields__) + ",\n)"


def _plain(annotation: Any) -> Any:
    """Annotations are text in our modules; values of other kinds have a name."""
    if annotation is inspect.Signature.empty:
        return annotation
    return _Unquoted(annotation if isinstance(annotation, str) else getattr(annotation, "__name__", annotation))


def _end(signature: str) -> int:
    """Where the parameters end."""
    depth = 0
    for index, letter in enumerate(signature):
        depth += (letter in "([{") - (letter in ")]}")
        if depth == 0:
            return index
    raise ValueError(signature)


def _arguments(signature: str) -> list[str]:
    found, depth = [""], 0
    for letter in signature[1 : _end(signature)]:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return [argument.strip() for argument in found]


def _code(text: str) -> str:
    return f"```py\n{text}\n```\n"


def _prose(what: Any) -> str:
    """The docstring as Markdown: examples become blocks of code."""
    text = ("" if hasattr(what, "__supertype__") else inspect.getdoc(what) or "").replace("::\n", ":\n")
    if not text:
        return ""
    paragraphs = [
        f"```pycon\n{part}\n```" if part.startswith(">>> ") else part for part in re.split(r"\n\s*\n", text.strip())
    ]
    return "\n\n".join(paragraphs) + "\n"


if __name__ == "__main__":
    sys.stdout.write(api_page())
