"""What writers need to know of a table, as plain values: schema, partitions and place. It travels to the subtasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    table = open_table(catalog, name)
    data = table.properties.get("write.data.path", f"{table.location().rstrip('/')}/data")
    return TableLayout(name, data, table.schema().model_dump_json(), table.spec().model_dump_json())
