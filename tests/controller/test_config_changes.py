"""What a new spec changes for a running cluster, as text."""

from __future__ import annotations

from dataclasses import replace

from shoal.controller.config_changes import config_changes
from tests.specs import cluster, node_type

OLD = cluster(min_workers=1, max_workers=4)


def test_nothing_changes_with_the_same_spec() -> None:
    assert config_changes(OLD, cluster(min_workers=1, max_workers=4)) == []


def test_new_limits_are_named_with_both_values() -> None:
    new = cluster(min_workers=2, max_workers=3)
    new = replace(new, shoal=replace(new.shoal, autostop=1860.0))
    assert config_changes(OLD, new) == [
        "max_workers 4 -> 3",
        "autostop off -> 31m",
        "min_workers of worker 1 -> 2",
    ]


def test_a_type_that_comes_or_goes_is_named() -> None:
    more = replace(OLD, node_types={**OLD.node_types, "gpu": node_type("gpu", max_workers=1)})
    assert config_changes(OLD, more) == ["node type gpu is new"]
    assert config_changes(more, OLD) == ["node type gpu is removed"]
    two = replace(OLD, node_types={**OLD.node_types, "gpu": node_type("gpu", max_workers=2)})
    assert config_changes(more, two) == ["max_workers of gpu 1 -> 2"]


def test_any_other_change_is_not_nothing() -> None:
    new = replace(OLD, scaling=replace(OLD.scaling, upscaling_speed=5.0))
    assert config_changes(OLD, new) == ["other settings of the file"]
    types = {**OLD.node_types, "worker": replace(OLD.node_types["worker"], labels={"a": "b"})}
    assert config_changes(OLD, replace(OLD, node_types=types)) == ["other settings of the file"]
