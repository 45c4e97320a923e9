"""What is drained and cancelled, and what is kept."""

from __future__ import annotations

from dataclasses import replace

from shoal.core.node_phase import Phase
from shoal.scaling import Cause, Demand, History, NodeView, Offering, Plan, Strategy, plan
from shoal.scaling.scale_down import CANCEL_AFTER_S
from shoal.spec.cluster_spec import ClusterSpec
from tests.scaling.clusters import (
    C4,
    C16,
    G1,
    HEAD,
    OFFERINGS,
    carried_out,
    counts,
    demand,
    gang,
    launching,
    node_type,
    ready,
    spec,
    tasks,
)

NO_HISTORY = History()


def drained(result: Plan) -> list[str]:
    return sorted(d.node_id for d in result.drains)


def settled(cluster: ClusterSpec, nodes: list[NodeView], pending: Demand) -> Plan:
    """The plan after the same state has lasted long enough to cancel nodes."""
    first = plan(cluster, nodes, pending, NO_HISTORY, 0.0, OFFERINGS)
    return plan(cluster, nodes, pending, first.history, CANCEL_AFTER_S, OFFERINGS)


def test_a_node_is_drained_after_the_idle_timeout_of_its_type() -> None:
    quick = node_type("quick", {"CPU": 4}, idle_timeout_s=60)
    slow_ones = [ready("a", C4, idle_s=299), ready("b", C4, idle_s=300), ready("e", C4)]
    quick_ones = [ready("c", quick, idle_s=61), ready("d", quick, idle_s=59)]
    nodes = [HEAD, *slow_ones, *quick_ones]
    result = plan(spec(C4, quick), nodes, demand(), NO_HISTORY, 0.0)
    assert drained(result) == ["b", "c"]
    assert {d.reason.cause for d in result.drains} == {Cause.IDLE}
    assert "idle for 5 min; idle timeout is 5 min" in [d.reason.text for d in result.drains]


def test_the_head_and_min_workers_are_kept() -> None:
    worker = node_type("c4", {"CPU": 4}, min_workers=2)
    head = replace(HEAD, idle_s=1e6)
    nodes = [head, *(ready(f"n{i}", worker, idle_s=400 + i) for i in range(5))]
    assert drained(plan(spec(worker), nodes, demand(), NO_HISTORY, 0.0)) == ["n2", "n3", "n4"]


def test_idle_nodes_that_pending_work_can_use_are_kept() -> None:
    nodes = [HEAD, *(ready(f"n{i}", C4, idle_s=900) for i in range(10))]
    result = plan(spec(C4), nodes, demand(tasks(9, CPU=1)), NO_HISTORY, 0.0)
    assert len(result.drains) == 7
    assert not result.launches


def test_idle_nodes_that_a_floor_needs_are_kept() -> None:
    nodes = [HEAD, ready("busy", C4), *(ready(f"n{i}", C4, idle_s=900) for i in range(10))]
    result = plan(spec(C4), nodes, demand(floors=[tasks(20, CPU=1)]), NO_HISTORY, 0.0)
    assert len(result.drains) == 6  # the busy one counts for the floor too


def test_the_most_expensive_idle_node_is_drained_first() -> None:
    keep_one = spec(C4, C16, initial_workers=1)
    nodes = [HEAD, ready("cheap", C4, idle_s=900), ready("dear", C16, idle_s=400)]
    assert drained(plan(keep_one, nodes, demand(), NO_HISTORY, 0.0, OFFERINGS)) == ["dear"]


def test_launching_nodes_are_cancelled_when_their_demand_is_gone() -> None:
    nodes = [HEAD, *(launching(f"n{i}", C4) for i in range(10))]
    result = settled(spec(C4), nodes, demand(tasks(8, CPU=1)))
    assert len(result.cancels) == 8
    assert {c.reason.cause for c in result.cancels} == {Cause.UNNEEDED}


def test_launching_nodes_are_removed_before_ready_ones() -> None:
    nodes = [HEAD, ready("up", C4, idle_s=900), launching("late", C4)]
    result = settled(spec(C4), nodes, demand(tasks(4, CPU=1)))
    assert [c.node_id for c in result.cancels] == ["late"]
    assert not result.drains


def test_the_launching_node_in_the_earliest_phase_is_cancelled_first() -> None:
    nodes = [HEAD, launching("a", C4, Phase.STARTING), launching("b", C4, Phase.REQUESTED)]
    assert [c.node_id for c in settled(spec(C4), nodes, demand(tasks(4, CPU=1))).cancels] == ["b"]


def test_noisy_demand_cancels_nothing() -> None:
    nodes = [HEAD, *(launching(f"n{i}", C4) for i in range(4))]
    history = NO_HISTORY
    for now in range(0, 600, 10):
        pending = demand() if now % 20 else demand(tasks(16, CPU=1))
        result = plan(spec(C4), nodes, pending, history, float(now))
        assert result.is_empty
        history = result.history


def test_load_that_oscillates_around_a_threshold_launches_once() -> None:
    """Sixteen and seventeen CPUs in turn, a minute each: the fifth node is launched once."""
    cluster = spec(C4)
    nodes = [HEAD, *(ready(f"n{i}", C4) for i in range(4))]
    history, orders = NO_HISTORY, 0
    for minute in range(60):
        pending = demand(tasks(1, CPU=1)) if minute % 2 and len(nodes) == 5 else demand()
        nodes = [replace(n, idle_s=60.0) if n.id.startswith("new") else n for n in nodes]
        result = plan(cluster, nodes, pending, history, minute * 60.0)
        history = result.history
        if not result.is_empty:
            orders += 1
            grown = carried_out(result, nodes)
            nodes = [
                replace(n, phase=Phase.READY, total={"CPU": 4.0}, available={"CPU": 4.0})
                if n.phase is Phase.REQUESTED
                else n
                for n in grown
            ]
    assert orders == 1


def test_nodes_above_a_lowered_limit_are_removed_when_idle_and_never_when_busy() -> None:
    lowered = spec(node_type("c4", {"CPU": 4}, max_workers=1))
    nodes = [HEAD, ready("a", C4), ready("b", C4), ready("c", C4, idle_s=1), launching("d", C4)]
    result = plan(lowered, nodes, demand(), NO_HISTORY, 0.0)
    assert drained(result) == ["c"]
    assert [c.node_id for c in result.cancels] == ["d"]
    (unmet,) = result.unmet
    assert (unmet.count, unmet.reason.cause) == (1, Cause.OVER_LIMIT)


def test_nodes_of_a_type_that_left_the_file_are_removed_when_idle() -> None:
    nodes = [HEAD, ready("old", G1, idle_s=5), ready("kept", C4)]
    assert drained(plan(spec(C4), nodes, demand(), NO_HISTORY, 0.0)) == ["old"]


def test_gangs_keep_idle_nodes_for_each_of_their_bundles() -> None:
    nodes = [HEAD, *(ready(f"n{i}", C4, idle_s=900) for i in range(6))]
    pending = demand(gangs=[gang(Strategy.STRICT_SPREAD, *[{"CPU": 1}] * 4)])
    result = plan(spec(C4), nodes, pending, NO_HISTORY, 0.0)
    assert len(result.drains) == 2
    assert not result.launches


SMALL_OFFERING = Offering("small", price_per_hour=0.2)
SMALL, LARGE = node_type("small", {"CPU": 4}), node_type("large", {"CPU": 16})
PAIR = (SMALL_OFFERING, Offering("large", price_per_hour=0.8))


def busy(
    name: str, node_type_name: str, total: float, used: float, *, restartable: bool = True
) -> NodeView:
    return NodeView(name, node_type_name, Phase.READY, total={"CPU": total},
                    available={"CPU": total - used}, restartable=restartable)  # fmt: skip


def consolidated(nodes: list[NodeView], *, on: bool = True, quiet_s: float = 301.0) -> Plan:
    cluster = spec(SMALL, LARGE, consolidate=on)
    history = History(quiet_since=0.0)
    return plan(cluster, [HEAD, *nodes], demand(), history, quiet_s, PAIR)


def test_a_node_whose_work_fits_elsewhere_is_drained() -> None:
    result = consolidated([busy("a", "small", 4, 1), busy("b", "small", 4, 2)])
    assert len(result.drains) == 1
    assert result.drains[0].reason.cause is Cause.CONSOLIDATION
    assert "saves $0.20/h" in result.drains[0].reason.text


def test_consolidation_is_opt_in_and_needs_quiet_and_restartable_work() -> None:
    pair = [busy("a", "small", 4, 1), busy("b", "small", 4, 2)]
    assert consolidated(pair, on=False).is_empty
    assert consolidated(pair, quiet_s=200.0).is_empty
    assert consolidated([replace(n, restartable=False) for n in pair]).is_empty


def test_an_underused_large_node_is_drained_after_its_small_replacement_is_ready() -> None:
    cluster = spec(SMALL, LARGE, consolidate=True)
    nodes = [HEAD, busy("big", "large", 16, 3)]
    first = plan(cluster, nodes, demand(), History(quiet_since=0.0), 301.0, PAIR)
    assert counts(first) == {"small": 1}
    assert not first.drains
    coming = carried_out(first, nodes)
    waiting = plan(cluster, coming, demand(), first.history, 400.0, PAIR)
    assert waiting.is_empty  # the replacement is not cancelled although there is no demand
    nodes_ready = [
        replace(n, phase=Phase.READY, total={"CPU": 4.0}, available={"CPU": 4.0}, idle_s=1.0)
        if n.id.startswith("new")
        else n
        for n in coming
    ]
    assert drained(plan(cluster, nodes_ready, demand(), waiting.history, 460.0, PAIR)) == ["big"]


def test_a_small_saving_moves_nothing() -> None:
    near = (SMALL_OFFERING, Offering("large", price_per_hour=0.22))
    cluster = spec(SMALL, LARGE, consolidate=True)
    nodes = [HEAD, busy("big", "large", 16, 3)]
    assert plan(cluster, nodes, demand(), History(quiet_since=0.0), 301.0, near).is_empty
