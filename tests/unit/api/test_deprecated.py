"""Old names of the public face: each works, and warns with its new name at the line that used it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as pen
from penstock.api.deprecated import RENAMED, renamed_argument
from penstock.errors import ConfigError
from penstock.testing import stream_of


@renamed_argument("old", "new")
def function(first: int, *, new: int = 0) -> tuple[int, int]:
    return first, new


def called(function: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """Lets a type checker, which knows the new names alone, pass."""
    return function(*args, **kwargs)


@pytest.fixture
def stream() -> pen.Stream:
    return stream_of(pa.schema([("k", pa.int64())]))


@pytest.mark.parametrize(
    ("old", "new"),
    [("value", "value_state"), ("tumbling", "tumbling_window"), ("sliding", "sliding_window")],
)
def test_an_old_name_of_the_package_is_the_new_one_and_warns_where_it_is_used(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"^penstock.{old} is now called penstock.{new}$") as caught:
        assert getattr(pen, old) is getattr(pen, new)
    assert [warning.filename for warning in caught] == [__file__]


def test_an_old_name_can_be_imported() -> None:
    with pytest.warns(DeprecationWarning, match="value_state") as caught:
        from penstock import value
    assert value is pen.value_state
    assert {warning.filename for warning in caught} == {__file__}


def test_every_renamed_name_is_tested_and_none_is_shown_any_more() -> None:
    assert {"value", "tumbling", "sliding"} == set(RENAMED)
    assert not RENAMED.keys() & {*pen.__all__, *dir(pen)}


def test_an_argument_by_its_new_name_does_not_warn() -> None:
    assert function(1, new=2) == (1, 2)


def test_an_argument_by_its_old_name_works_and_warns_where_it_is_used() -> None:
    with pytest.warns(DeprecationWarning, match=r"^function\(old=…\) is now called function\(new=…\)$") as caught:
        assert called(lambda: function(1, old=2)) == (1, 2)  # type: ignore[call-arg]
    assert [warning.filename for warning in caught] == [__file__]


def test_an_argument_by_both_names_is_refused() -> None:
    with pytest.raises(ConfigError, match="got both old= and new="):
        called(function, 1, old=2, new=3)


def test_the_predicate_of_a_filter_is_called_condition(stream: pen.Stream) -> None:
    with pytest.warns(DeprecationWarning, match="condition"):
        assert called(stream.filter, predicate=pc.field("k") > 1).schema == stream.schema


def test_listeners_of_write_are_commit_listeners(stream: pen.Stream) -> None:
    listener = pen.CommitListener()
    with pytest.warns(DeprecationWarning, match="commit_listeners"):
        output = called(stream.write, pen.Discard(), listeners=[listener])
    assert output.node.listeners == (listener,)


@pytest.mark.parametrize("start", [lambda output, **kwargs: output.start(**kwargs), pen.start])
def test_listeners_of_start_are_called_on_event(
    stream: pen.Stream, start: Callable[..., object], tmp_path: Path
) -> None:
    """The option that does not exist ends the call once its arguments were taken."""
    with pytest.warns(DeprecationWarning, match="on_event") as caught, pytest.raises(ConfigError, match="'zzz'"):
        start(stream.write(pen.Discard()), checkpoint=tmp_path, listeners=(print,), zzz=1)
    assert [warning.filename for warning in caught] == [__file__]
