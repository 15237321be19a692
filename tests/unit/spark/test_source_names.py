"""The setting of a session under which sources have names in Spark's log, around the start of a streaming query."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from penstock.protocol.sourcelog import EVOLUTION
from penstock.spark.quirks import sourcenames
from penstock.spark.quirks.sourcenames import names_in_log


@dataclass
class Settings:
    """Of a session that is its own `conf`."""

    values: dict[str, str] = field(default_factory=dict)

    @property
    def conf(self) -> Settings:
        return self

    def get(self, name: str, default: str | None) -> str | None:
        return self.values.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.values[name] = value

    def unset(self, name: str) -> None:
        self.values.pop(name, None)


@pytest.mark.parametrize("new_log", [True, False])
def test_no_other_query_starts_meanwhile_whether_its_sources_have_names_or_not(new_log: bool) -> None:
    """Spark refuses a query without names while the setting of one with names is on in their session."""
    session = Settings()
    with names_in_log(cast("Any", session), new_log=new_log):
        assert (EVOLUTION in session.values) == new_log
        assert not sourcenames._setting.acquire(blocking=False), "another query could start now"
    assert session.values == {}
    assert not sourcenames._setting.locked()
