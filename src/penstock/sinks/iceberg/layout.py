"""What writers need to know of a table, as plain values: schema, partitions and place. It travels to the subtasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.sinks.iceberg.catalog import open_table


@dataclass(frozen=True, slots=True)
class TableLayout:
    """`schema` and `spec` are JSON, as Iceberg writes them; `data` is the folder of data files."""

    name: str
    data: str
    schema: str
    spec: str


def layout_of(catalog: Mapping[str, str] | str, name: str) -> TableLayout:
    """Raises: `TableMismatch`, `StorageFailed`."""
    return layout_of_table(open_table(catalog, name), name)


def layout_of_table(table: Any, name: str) -> TableLayout:
    """The same of a table that is open."""
    data = table.properties.get("write.data.path", f"{table.location().rstrip('/')}/data")
    return TableLayout(name, data, table.schema().model_dump_json(), table.spec().model_dump_json())
