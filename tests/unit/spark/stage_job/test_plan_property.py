"""How a plan reaches the tasks of a job that is the same in all epochs."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import msgspec
import pytest

from penstock.protocol.layout import PLANS
from penstock.protocol.plan import InputPlan
from penstock.spark.stage_job.plan_property import (
    PLAN_PROPERTY,
    PROPERTY_BYTES_MAX,
    received,
    sent_along,
    sent_in_order,
)
from penstock.store.memory import MemoryStore
from tests.unit.protocol.test_parts import plan_of


@pytest.mark.parametrize(("parallelism", "files"), [(3, 0), (128, 1)])
def test_each_task_gets_its_own_plan(parallelism: int, files: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """H2: in the property while plans are short, else by a file, which is gone after the job."""
    monkeypatch.setattr("penstock.spark.stage_job.plan_property.PROPERTY_BYTES_MAX", 1000)
    store, properties, plan = MemoryStore(), {}, plan_of(parallelism)
    live = (InputPlan("live", (), live=True),)
    subtasks = tuple(msgspec.structs.replace(mine, inputs=(*mine.inputs, *live)) for mine in plan.subtasks)
    plan = msgspec.structs.replace(plan, subtasks=subtasks)
    context = mock.Mock(setLocalProperty=properties.__setitem__)
    with sent_along(context, plan, store, 5):
        task = SimpleNamespace(getLocalProperty=properties.get)
        assert len(store.list(PLANS)) == files
        assert len(properties[PLAN_PROPERTY]) < 2000
        for mine in plan.subtasks:
            assert received(task, store, mine.subtask) == msgspec.structs.replace(plan, subtasks=(mine,))
    assert store.list(PLANS) == []
    assert properties == {PLAN_PROPERTY: None}


def test_a_task_gets_the_plan_of_the_subtask_that_has_its_place_in_the_order() -> None:
    properties, plan = {}, plan_of(5)
    order = [plan.subtasks[place] for place in (3, 0, 4)]
    context = mock.Mock(setLocalProperty=properties.__setitem__)
    with sent_in_order(context, plan, order) as sent:
        assert sent
        task = SimpleNamespace(getLocalProperty=properties.get)
        got = [received(task, MemoryStore(), place).subtasks for place in range(3)]
    assert got == [(mine,) for mine in order]
    assert properties == {PLAN_PROPERTY: None}


def test_plans_that_are_too_long_for_a_property_are_not_sent_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.stage_job.plan_property.PROPERTY_BYTES_MAX", 10)
    context, plan = mock.Mock(), plan_of(5)
    with sent_in_order(context, plan, plan.subtasks) as sent:
        assert not sent
    context.setLocalProperty.assert_not_called()


def test_a_job_that_fails_leaves_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.stage_job.plan_property.PROPERTY_BYTES_MAX", 0)
    store = MemoryStore()
    with pytest.raises(ZeroDivisionError), sent_along(mock.Mock(), plan_of(128), store, 5):
        raise ZeroDivisionError
    assert store.list(PLANS) == []
    assert PROPERTY_BYTES_MAX < 1 << 16, "Spark sends it with every task"
