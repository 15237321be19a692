"""Where a table is found: a warehouse folder, or a catalog that pypaimon knows.

Options of a catalog hold credentials. They travel with the warehouse, which shows itself without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from penstock.errors import ConfigError

METASTORE = "metastore"
FILESYSTEM, JDBC, REST = "filesystem", "jdbc", "rest"


class Warehouse(str):  # noqa: SLOT000 - it has an attribute
    """A warehouse's address, with the options of the catalog that knows its tables."""

    catalog: Mapping[str, str]

    def __new__(cls, address: str, catalog: Mapping[str, str]) -> Self:
        made = super().__new__(cls, address)
        made.catalog = dict(catalog)
        return made

    def __reduce__(self) -> tuple[type[Warehouse], tuple[str, dict[str, str]]]:
        return Warehouse, (str(self), dict(self.catalog))


def catalog_of(warehouse: str) -> dict[str, str]:
    """What pypaimon's factory of catalogs is given."""
    own = dict(warehouse.catalog) if isinstance(warehouse, Warehouse) else {}
    return {"warehouse": str(warehouse)} | own


def kind_of(warehouse: str) -> str:
    return catalog_of(warehouse).get(METASTORE, FILESYSTEM).lower()


def publishes_snapshots(warehouse: str) -> bool:
    """Whether the catalog itself decides which commit becomes a snapshot, wherever its files are."""
    return kind_of(warehouse) == REST


def check_catalog(catalog: Mapping[str, str]) -> None:
    """Raises: `ConfigError` for a catalog that pypaimon does not have."""
    kind = str(catalog.get(METASTORE, FILESYSTEM)).lower()
    if kind not in {FILESYSTEM, JDBC, REST}:
        raise ConfigError(
            f"catalog={{'metastore': {kind!r}, ...}}",
            cause="pypaimon has catalogs of kind filesystem, jdbc and rest; it has none for Hive",
            next_step="use one of these; a table in a Hive catalog's warehouse can be written by its folder",
            option="catalog",
        )
