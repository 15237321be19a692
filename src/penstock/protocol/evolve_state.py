"""What becomes of an operator and of its state in a changed pipeline. State follows the name of its operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from penstock.protocol.columns import ColumnChange, Columns, column_change
from penstock.protocol.fates import Carried, Converted, Fate, Forgotten, New, PartFate, Refused, Renamed
from penstock.protocol.manifest import OperatorShape, StateFile

OWN_PREFIX = "__"
"""State columns of Penstock's own, such as the moments at which values expire: no user misses them."""
PART_OF = "__"
"""Between an aggregate's name and the name of a part of its state, as in ``price__sum``."""
_TOGETHER = {
    "event_timers": "timers",
    "processing_timers": "timers",
    "left_deadlines": "deadlines",
    "right_deadlines": "deadlines",
}
"""Tables that users know by one name; all others, such as broadcast maps, go by their own."""


@dataclass(frozen=True, slots=True)
class StateRules:
    """How a table of state may differ from that of a checkpoint."""

    keys: int = 0
    """The number of its key columns, which come first."""
    may_grow: bool = False
    from_start: frozenset[str] = frozenset()
    """Value columns that cannot begin later."""


@dataclass(frozen=True, slots=True)
class OperatorChange:
    """The decision on one operator: lines for people, and for each table that is carried its name in the checkpoint."""

    lines: tuple[PartFate, ...]
    tables: Mapping[str, str] = field(default_factory=dict)
    gone: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By table part, columns that files of this or an older pipeline may have and that must not come back."""
    carried: bool = True
    """Whether timers go on; not those of an operator that begins anew."""
    migrated: frozenset[str] = frozenset()
    """Of `tables`, those whose rows a function of the user makes anew."""


@dataclass(frozen=True, slots=True)
class KeptOperator:
    """An operator in the checkpoint and in the pipeline."""

    old_name: str
    name: str
    old: OperatorShape
    new: OperatorShape
    old_keys: tuple[tuple[str, ...], ...]
    """Of the inputs that have keys."""
    new_keys: tuple[tuple[str, ...], ...]
    files: Mapping[str, tuple[StateFile, ...]]
    """By table of the checkpoint."""
    rules: Mapping[str, StateRules]
    """By table of the pipeline."""
    forget: frozenset[str]
    reset: bool = False
    migrate: frozenset[str] = frozenset()
    """Tables, as the pipeline calls them, for which the user has a function."""
    migrate_always: bool = False
    """Also where the stored form fits."""
    seen_until: str = ""
    """The largest event time that sources have delivered, for people."""
    crossed: str = ""
    """An input whose rows come in at another place now."""

    def old_table(self, part: str) -> str:
        return table_name(self.old_name, part)

    def rows_of(self, part: str) -> int:
        return sum(file.rows for file in self.files.get(self.old_table(part), ()))

    def bytes_of(self, part: str) -> int:
        return sum(file.bytes for file in self.files.get(self.old_table(part), ()))

    @property
    def rows(self) -> int:
        return sum(self.rows_of(part) for part in self.old.state)


def table_name(operator: str, part: str) -> str:
    return f"{operator}/{part}" if part else operator


def keep(kept: KeptOperator) -> OperatorChange:
    """An operator that goes on."""
    named: Fate = Carried() if kept.old_name == kept.name else Renamed(kept.old_name)
    operator = PartFate("operator", kept.name, named)
    if kept.reset:
        lines = [_line(kept, part, Forgotten(f"reset: begins empty{_boundary(kept)}")) for part in kept.old.state]
        return OperatorChange((operator, *lines), carried=False)
    if not kept.rows:
        lines = [PartFate("state", table_name(kept.name, part), New()) for part in kept.new.state]
        return OperatorChange((operator, *lines), carried=kept.old.kind == kept.new.kind)
    why = _why_not(kept)
    possible = not _other_places(kept)
    # A join has a table for each side; others have one that goes by their own name.
    main = "left" if _is_join(kept.new.kind) else ""
    if why is not None and not (possible and table_name(kept.name, main) in kept.migrate):
        option = _other_meaning(kept, main, function=possible)
        return OperatorChange((replace(operator, fate=Refused(why, option)),), carried=False)
    return _tables(kept, operator, anew=why is not None or kept.migrate_always)


def _boundary(kept: KeptOperator) -> str:
    """From when on windows that begin empty miss nothing: rows up to then may have gone into the old ones."""
    if not _is_window(kept.new.kind) or not kept.seen_until:
        return ""
    return f"; windows that begin after {kept.seen_until} are complete"


def _why_not(kept: KeptOperator) -> str | None:
    """Why state that is there cannot be that of the operator, whatever its columns are."""
    old, new = kept.old, kept.new
    if old.kind != new.kind:
        return f"its state is that of {old.kind}, the operator is {new.kind}"
    if kept.crossed and _is_join(old.kind):
        return f"its state is by sides, and {kept.crossed} comes in at the other side now"
    if kept.old_keys != kept.new_keys:
        return f"its state is by {_keys(kept.old_keys)}, the operator's key is {_keys(kept.new_keys)}"
    if not isinstance(old.computed, msgspec.UnsetType) and not isinstance(new.computed, msgspec.UnsetType):
        for name, meaning in new.computed.items():
            before = old.computed.get(name, meaning)
            if before != meaning:
                return f"computed: checkpoint has {name} {before}, pipeline has {name} {meaning}"
    return None


def _other_places(kept: KeptOperator) -> bool:
    """Whether rows would belong elsewhere, whatever a function makes of their values."""
    if tuple(map(len, kept.old_keys)) != tuple(map(len, kept.new_keys)):
        return True
    return _places(kept.old.kind) != _places(kept.new.kind) or (bool(kept.crossed) and _is_join(kept.old.kind))


def _places(kind: str) -> str:
    """How rows of state lie where not by the keys of the operator alone: in panes or slots of some length, which are
    only numbers in a key; or by more columns."""
    if _is_window(kind):
        return kind.partition("/top_n/")[0]
    return kind if _is_join(kind) else "deduplicate" if kind.startswith("deduplicate") else ""


def _is_window(kind: str) -> bool:
    return "_window/" in kind


def _is_join(kind: str) -> bool:
    return kind.startswith("join/")


def _keys(keys: Sequence[tuple[str, ...]]) -> str:
    return " and ".join(f"({', '.join(part)})" for part in keys) or "no key"


def _other_meaning(kept: KeptOperator, part: str = "", *, function: bool = True) -> str:
    offered = f"migrate={{{table_name(kept.name, part)!r}: function}} makes new state of it; "
    return (
        f"{offered if function and part in kept.new.state else ''}reset=[{kept.name!r}] begins with empty state;"
        " or give the operator another name"
    )


def _tables(kept: KeptOperator, operator: PartFate, *, anew: bool) -> OperatorChange:
    lines, tables, gone, migrated = [operator], {}, {}, set()
    for part in dict.fromkeys((*kept.old.state, *kept.new.state)):
        line, left_out = _table(kept, part, anew=anew)
        name = table_name(kept.name, part)
        if line.fate == MIGRATED:
            migrated.add(name)
        lines.append(line)
        if left_out:
            gone[part] = left_out
        if not isinstance(line.fate, New | Forgotten | Refused):
            tables[name] = kept.old_table(part)
    return OperatorChange(tuple(lines), tables, gone, migrated=frozenset(migrated))


def _table(kept: KeptOperator, part: str, *, anew: bool) -> tuple[PartFate, tuple[str, ...]]:
    """The line of one table, and the columns that its files have and the pipeline does not."""
    old, new = kept.old.state.get(part), kept.new.state.get(part)
    if new is None:
        return _line(kept, part, _gone_table(kept, part)), ()
    rules = kept.rules.get(table_name(kept.name, part), StateRules())
    if old is None:
        if rules.may_grow or kept.name in kept.migrate:
            return PartFate("state", table_name(kept.name, part), New()), ()
        refused = Refused(f"its state has no table {part!r}", _other_meaning(kept))
        return PartFate("state", table_name(kept.name, part), refused), ()
    if table_name(kept.name, part) in kept.migrate and (anew or old != new):
        return _line(kept, part, _migrated(kept, old, new, rules)), ()
    return _columns(kept, part, old, new, rules)


MIGRATED = Converted("by your function")


def _migrated(kept: KeptOperator, old: Columns, new: Columns, rules: StateRules) -> Fate:
    """A function changes values; rows stay with their keys, which have to be of the same types."""
    keys = rules.keys
    if len(old) < keys or [kind for _, kind in old[:keys]] != [kind for _, kind in new[:keys]]:
        why = f"its keys are {_shown(old[:keys])}, the operator's are {_shown(new[:keys])}: no function moves rows"
        return Refused(why, f"reset=[{kept.name!r}] begins with empty state; or give the operator another name")
    return MIGRATED


def _gone_table(kept: KeptOperator, part: str) -> Fate:
    name = f"{kept.name}.{_TOGETHER.get(part, part)}"
    if not kept.rows_of(part) or {name, f"{kept.name}.{part}"} & kept.forget:
        return Forgotten("the operator does not have it any more")
    return Refused("the operator does not have this state any more", f"forget=[{name!r}] gives it up")


def _columns(
    kept: KeptOperator, part: str, old: Columns, new: Columns, rules: StateRules
) -> tuple[PartFate, tuple[str, ...]]:
    earlier = _gone(kept.old, part)
    if old == new:
        return _line(kept, part, _same(kept)), earlier
    keys = rules.keys
    if old[:keys] != new[:keys]:
        why = f"its keys are {_shown(old[:keys])}, the operator's are {_shown(new[:keys])}"
        return _line(kept, part, Refused(why, _other_meaning(kept, part))), earlier
    change = column_change(old[keys:], new[keys:])
    refused = next(_refusals(kept, part, change, rules, earlier), None)
    left_out = tuple(dict.fromkeys((*earlier, *(name for name, _ in change.removed))))
    fate = refused or Converted(str(change) or "columns in another order")
    return _line(kept, part, fate), left_out


def _refusals(
    kept: KeptOperator, part: str, change: ColumnChange, rules: StateRules, gone: Sequence[str]
) -> Iterator[Refused]:
    option = _other_meaning(kept, part)
    for name, before, after in change.changed:
        yield Refused(f"{name} is {before} in its state, the operator has {name} {after}", option)
    for name, kind in change.added:
        if name in gone:
            why = f"{name} was forgotten earlier, and files may still have its values"
            yield Refused(why, f"give it another name; or {option}")
        elif not rules.may_grow or name in rules.from_start:
            yield Refused(f"{name} {kind} cannot begin in the middle", option)
    # What users call a field may look like a part of an aggregate, and is one of its own.
    parts = kept.old.kind == "aggregate" or _is_window(kept.old.kind)
    for name, _ in change.removed:
        shown = (parts and name.rpartition(PART_OF)[0]) or name
        if not name.startswith(OWN_PREFIX) and not {f"{kept.name}.{name}", f"{kept.name}.{shown}"} & kept.forget:
            yield Refused(f"the operator does not have {shown} any more", f"forget=['{kept.name}.{shown}'] gives it up")


def _gone(operator: OperatorShape, part: str) -> tuple[str, ...]:
    return () if isinstance(operator.gone, msgspec.UnsetType) else operator.gone.get(part, ())


def _same(kept: KeptOperator) -> Fate:
    return Carried() if kept.old_name == kept.name else Renamed(kept.old_name)


def _line(kept: KeptOperator, part: str, fate: Fate) -> PartFate:
    return PartFate("state", table_name(kept.name, part), fate, kept.rows_of(part), kept.bytes_of(part))


def _shown(columns: Columns) -> str:
    return "(" + ", ".join(f"{name} {kind}" for name, kind in columns) + ")"


def drop(
    name: str,
    old: OperatorShape,
    files: Mapping[str, tuple[StateFile, ...]],
    forget: frozenset[str],
    taken_by: str = "",
) -> OperatorChange:
    """An operator that the pipeline does not have any more. `taken_by`: what has its name now."""
    parts = [(part, files.get(table_name(name, part), ())) for part in old.state]
    rows = sum(file.rows for _, found in parts for file in found)
    if rows and name not in forget:
        option = f"forget=[{name!r}] gives it up; renamed={{{name!r}: 'new name'}} keeps it"
        if taken_by:
            option = f"{name!r} is a {taken_by} now: give that another name; then {option}"
        size = sum(file.bytes for _, found in parts for file in found)
        return OperatorChange(
            (PartFate("operator", name, Refused("its state has no place in the pipeline", option), rows, size),)
        )
    states = [
        PartFate(
            "state",
            table_name(name, part),
            Forgotten(),
            sum(file.rows for file in found),
            sum(file.bytes for file in found),
        )
        for part, found in parts
        if found
    ]
    return OperatorChange(
        (PartFate("operator", name, Forgotten("not in the pipeline any more")), *states), carried=False
    )
