"""A scaling plan as a table."""

from __future__ import annotations

from shoal.cli.render.plan_table import plan_table
from shoal.scaling import History, Offering, plan
from tests.scaling.clusters import C4, G1, HEAD, demand, ready, spec, tasks


def test_a_plan_is_shown_as_a_table_with_reasons() -> None:
    nodes = [HEAD, *(ready(f"n{i}", G1, idle_s=400) for i in range(2))]
    pending = demand(tasks(8, CPU=4), tasks(1, CPU=1, GPU=4))
    offerings = [Offering("c4", "spot", "b", 0.07), Offering("g1", price_per_hour=0.75)]
    result = plan(spec(C4, G1), nodes, pending, History(), 0.0, offerings)
    launch, wait = plan_table(result).splitlines()[1:]
    why = "4 of 8 pending tasks/actors of {CPU: 4} do not fit; adding the cheapest nodes"
    assert launch == f"launch  c4 (spot, b)      4      0.28  {why}"
    assert wait.startswith("wait")
    assert "needs 4 GPU on one node; the largest node type has 1; add a node type with" in wait


def test_an_empty_plan_says_so() -> None:
    assert plan_table(plan(spec(C4), [HEAD], demand(), History(), 0.0)) == "nothing to do"


def test_equal_drains_share_a_row() -> None:
    nodes = [HEAD, *(ready(f"n{i}", C4, idle_s=400) for i in range(3))]
    lines = plan_table(plan(spec(C4), nodes, demand(), History(), 0.0)).splitlines()
    assert lines[1].split()[:3] == ["drain", "c4", "3"]
