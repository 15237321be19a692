"""`penstock.events`: the events under their public name."""

from __future__ import annotations

from typing import get_args

import penstock as pen
from penstock import events
from penstock.observe.events import Event


def test_every_event_has_a_public_name() -> None:
    assert {event.__name__ for event in get_args(Event)} <= set(events.__all__)
    assert all(getattr(events, event.__name__) is event for event in get_args(Event))


def test_the_package_has_its_events_without_another_import() -> None:
    assert pen.events is events
    assert set(events.__all__) <= set(dir(events))
