"""The plans of `up`, from data alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.bootstrap.applied_state import AppliedState
from shoal.bootstrap.node_probe import NodeProbe
from shoal.cluster.observed_cluster import ObservedCluster
from shoal.ops.up_plan import RestartPolicy, UpPlan, plan_up
from shoal.providers.model import Instance, State
from shoal.spec.cluster_spec import ClusterSpec, VolumeSpec
from shoal.spec.hashes import launch_hash
from tests.specs import cluster

WITHOUT_REPLACEMENT: tuple[RestartPolicy, ...] = ("never", "only")
APPLIED = AppliedState(files="f", setup="s", start="r")
HEALTHY = NodeProbe(APPLIED, ray_runs=True)


def instance(name: str, node_type: str = "worker", age: int = 0) -> Instance:
    return Instance(
        id=f"id-{name}",
        cluster="c",
        name=name,
        node_type=node_type,
        role="head" if name == "head" else "worker",
        state=State.RUNNING,
        address="127.77.0.1",
        created_at=1000 + age,
    )


def healthy(*instances: Instance) -> ObservedCluster:
    ids = [i.id for i in instances]
    return ObservedCluster(instances, dict.fromkeys(ids, HEALTHY), dict.fromkeys(ids, APPLIED))


def with_probes(observed: ObservedCluster, **probes: NodeProbe) -> ObservedCluster:
    """The same cluster with other probe results for some nodes, by name."""
    changed = {
        i.id: probes[i.name.replace("-", "_")]
        for i in observed.instances
        if i.name.replace("-", "_") in probes
    }
    return replace(observed, probes={**observed.probes, **changed})


def updates(plan: UpPlan) -> list[tuple[str, str]]:
    return [(update.instance.name, update.mode) for update in plan.updates]


def steps(plan: UpPlan) -> list[tuple[str, str]]:
    return [(step.action, step.subject) for step in plan.steps]


HEAD = instance("head", "head")


def test_a_new_cluster_gets_its_head_and_min_workers() -> None:
    plan = plan_up(cluster(min_workers=2), ObservedCluster())
    assert steps(plan) == [("create", "1 x head"), ("create", "2 x worker")]
    assert [(launch.role, launch.count) for launch in plan.launches] == [("head", 1), ("worker", 2)]


def test_a_cluster_that_matches_its_file_needs_nothing() -> None:
    observed = healthy(HEAD, instance("worker-1"), instance("worker-2"))
    assert plan_up(cluster(min_workers=2), observed).is_empty


def test_workers_above_the_minimum_are_kept() -> None:
    assert plan_up(cluster(min_workers=0), healthy(HEAD, instance("worker-1"))).is_empty


def test_only_missing_workers_are_created() -> None:
    plan = plan_up(cluster(min_workers=3), healthy(HEAD, instance("worker-1")))
    assert steps(plan) == [("create", "2 x worker")]
    assert "1 exist" in plan.steps[0].reason


def test_only_the_node_without_a_running_ray_is_started() -> None:
    observed = with_probes(healthy(HEAD, instance("worker-1")), worker_1=NodeProbe(APPLIED))
    plan = plan_up(cluster(min_workers=1), observed)
    assert updates(plan) == [("worker-1", "full")]
    assert plan.steps[0].reason == "Ray is not running on it"
    assert not plan.is_disruptive


def without_probes(observed: ObservedCluster, *names: str) -> ObservedCluster:
    """The same cluster without probe results for some nodes, by name."""
    ids = {i.id for i in observed.instances if i.name in names}
    return replace(observed, probes={id: v for id, v in observed.probes.items() if id not in ids})


@pytest.mark.parametrize("restart", ["as needed", "never"])
def test_a_node_without_a_probe_result_is_updated_without_a_restart(
    restart: RestartPolicy,
) -> None:
    observed = without_probes(
        healthy(HEAD, instance("worker-1"), instance("worker-2")), "head", "worker-1"
    )
    plan = plan_up(cluster(min_workers=2), observed, restart)
    assert updates(plan) == [("head", "update"), ("worker-1", "update")]
    assert plan.steps[0].reason == "could not read its state"
    assert not plan.is_disruptive


def test_restart_only_also_restarts_a_node_without_a_probe_result() -> None:
    observed = without_probes(healthy(HEAD, instance("worker-1")), "worker-1")
    plan = plan_up(cluster(min_workers=1), observed, "only")
    assert updates(plan) == [("head", "restart"), ("worker-1", "restart")]


def test_a_booting_node_gets_the_full_bootstrap() -> None:
    booting = replace(instance("worker-1"), state=State.PENDING)
    plan = plan_up(cluster(min_workers=1), without_probes(healthy(HEAD, booting), "worker-1"))
    assert updates(plan) == [("worker-1", "full")]
    assert plan.steps[0].reason == "Ray is not running on it"


def test_workers_restart_with_their_head() -> None:
    observed = with_probes(healthy(HEAD, instance("worker-1")), head=NodeProbe(APPLIED))
    plan = plan_up(cluster(min_workers=1), observed)
    assert updates(plan) == [("head", "full"), ("worker-1", "restart")]
    assert not plan.is_disruptive, "without its head, nothing runs on a worker"


def test_workers_without_a_head_are_kept_and_restarted() -> None:
    plan = plan_up(cluster(min_workers=1), healthy(instance("worker-1")))
    assert steps(plan) == [("create", "1 x head"), ("restart", "worker-1")]
    assert plan.steps[1].reason == "its head is new"


OLD_SETUP = NodeProbe(replace(APPLIED, setup="old"), ray_runs=True)
OLD_FILES = NodeProbe(replace(APPLIED, files="old", setup="old"), ray_runs=True)
OLD_START = NodeProbe(replace(APPLIED, start="old"), ray_runs=True)


def test_a_changed_setup_is_applied_with_a_restart() -> None:
    observed = with_probes(healthy(HEAD, instance("worker-1")), worker_1=OLD_SETUP)
    plan = plan_up(cluster(min_workers=1), observed)
    assert updates(plan) == [("worker-1", "full")]
    assert plan.steps[0].reason == "its setup changed"


def test_changed_files_are_given_as_the_reason() -> None:
    observed = with_probes(healthy(HEAD, instance("worker-1")), worker_1=OLD_FILES)
    assert plan_up(cluster(min_workers=1), observed).steps[0].reason == "its files changed"


def test_no_restart_applies_files_and_setup_without_restarting_ray() -> None:
    observed = with_probes(healthy(HEAD, instance("worker-1")), head=OLD_START, worker_1=OLD_SETUP)
    plan = plan_up(cluster(min_workers=1), observed, "never")
    assert updates(plan) == [("worker-1", "update")]
    assert not plan.is_disruptive


def test_changed_start_commands_restart_ray_without_setup() -> None:
    observed = with_probes(healthy(HEAD, instance("worker-1")), worker_1=OLD_START)
    assert updates(plan_up(cluster(min_workers=1), observed)) == [("worker-1", "restart")]


def test_restart_only_restarts_every_node() -> None:
    plan = plan_up(cluster(min_workers=1), healthy(HEAD, instance("worker-1")), "only")
    assert updates(plan) == [("head", "restart"), ("worker-1", "restart")]
    assert plan.is_disruptive


def test_an_unreachable_node_is_replaced() -> None:
    lost = replace(instance("worker-1"), state=State.UNREACHABLE)
    plan = plan_up(cluster(min_workers=1), healthy(HEAD, lost))
    assert steps(plan) == [("create", "1 x worker")]


def test_a_lower_maximum_drains_the_youngest_workers() -> None:
    old, young = instance("worker-1", age=0), instance("worker-2", age=5)
    plan = plan_up(cluster(min_workers=0, max_workers=1), healthy(HEAD, young, old))
    assert (plan.terminate, plan.drain) == ((), (young,))
    assert not plan.is_disruptive, "the controller waits for their work"
    assert "max_workers is 1" in plan.steps[0].reason


def test_workers_of_a_removed_node_type_are_drained() -> None:
    orphan = instance("worker-1", node_type="gpu")
    plan = plan_up(cluster(min_workers=0), healthy(HEAD, orphan))
    assert (plan.terminate, plan.drain) == ((), (orphan,))
    assert "no longer in the file" in plan.steps[0].reason


def test_surplus_workers_are_terminated_where_nothing_can_drain_them() -> None:
    worker = instance("worker-1")
    spec = cluster(min_workers=0, max_workers=0)
    without_controller = replace(spec, shoal=replace(spec.shoal, controller=False))
    assert plan_up(without_controller, healthy(HEAD, worker)).terminate == (worker,)
    restarting = with_probes(healthy(HEAD, worker), head=NodeProbe(APPLIED, ray_runs=False))
    assert plan_up(spec, restarting).terminate == (worker,), "the head's restart ends its work"


def test_a_head_of_another_type_is_replaced() -> None:
    old = instance("head", node_type="small")
    plan = plan_up(cluster(min_workers=0), healthy(old))
    assert steps(plan) == [("create", "1 x head"), ("terminate", "head")]


def with_other_node_config(spec: ClusterSpec, *names: str) -> ClusterSpec:
    """The same spec with another node_config for these node types."""
    changed = {n: replace(spec.node_types[n], node_config={"InstanceType": "x"}) for n in names}
    return replace(spec, node_types={**spec.node_types, **changed})


def launched(spec: ClusterSpec, *instances: Instance) -> list[Instance]:
    """The instances with the launch hash of this spec."""
    return [replace(i, launch_hash=launch_hash(spec, i.node_type)) for i in instances]


def test_a_worker_with_an_outdated_node_config_is_replaced() -> None:
    before = cluster(min_workers=2)
    old = launched(before, HEAD, instance("worker-1"), instance("worker-2"))
    after = with_other_node_config(before, "worker")
    (new,) = launched(after, instance("worker-3"))
    plan = plan_up(after, healthy(old[0], old[1], new))
    assert steps(plan) == [("create", "1 x worker"), ("terminate", "worker-1")]
    assert "node_config" in plan.steps[1].reason
    assert plan.replaced == plan.terminate == (old[1],)
    assert plan.is_disruptive
    assert plan_up(before, healthy(*old)).is_empty, "the file is unchanged"


def test_replacing_the_head_warns_about_its_disks() -> None:
    before = cluster(min_workers=1)
    after = with_other_node_config(before, "head")
    plan = plan_up(after, healthy(*launched(before, HEAD, instance("worker-1"))))
    assert steps(plan) == [("create", "1 x head"), ("terminate", "head"), ("restart", "worker-1")]
    assert "disks" in plan.steps[1].reason


def test_a_node_with_new_volumes_is_replaced() -> None:
    """Only a launch attaches disks."""
    before = cluster(min_workers=1)
    observed = healthy(*launched(before, HEAD, instance("worker-1")))
    volumes = {"/data": VolumeSpec(device="/dev/sdf", size=100, node_types=("worker",))}
    after = replace(before, shoal=replace(before.shoal, volumes=volumes))
    assert steps(plan_up(after, observed)) == [("create", "1 x worker"), ("terminate", "worker-1")]


def test_no_restart_keeps_and_reports_outdated_instances() -> None:
    before = cluster(min_workers=1)
    old = launched(before, HEAD, instance("worker-1"))
    after = with_other_node_config(before, "head", "worker")
    for restart in WITHOUT_REPLACEMENT:
        plan = plan_up(after, healthy(*old), restart)
        assert not plan.launches
        assert not plan.terminate
        assert plan.outdated == tuple(old)
    assert not plan_up(after, healthy(*old)).outdated, "those are replaced"


def test_an_instance_without_a_launch_hash_is_current() -> None:
    spec = with_other_node_config(cluster(min_workers=1), "head", "worker")
    plan = plan_up(spec, healthy(HEAD, instance("worker-1")))
    assert plan.is_empty
    assert not plan.outdated


def test_an_outdated_stopped_worker_is_replaced() -> None:
    before = cluster(min_workers=1)
    after = with_other_node_config(before, "worker")
    stopped = replace(launched(before, instance("worker-1"))[0], state=State.STOPPED)
    plan = plan_up(after, healthy(HEAD, stopped))
    assert steps(plan) == [("create", "1 x worker"), ("terminate", "worker-1")]


def test_legacy_initial_workers_are_created_above_the_minimum() -> None:
    spec = _with_initial(cluster(min_workers=1, max_workers=3), initial=9)
    assert steps(plan_up(spec, ObservedCluster()))[1] == ("create", "3 x worker")


def _with_initial(spec: ClusterSpec, initial: int) -> ClusterSpec:
    return replace(spec, scaling=replace(spec.scaling, initial_workers=initial))


def test_stopped_workers_above_the_minimum_stay_stopped() -> None:
    stopped = [replace(instance(f"w{n}", age=n), state=State.STOPPED) for n in (1, 2, 3)]
    plan = plan_up(cluster(min_workers=2), healthy(HEAD, *stopped))
    assert [name for name, _ in updates(plan)] == ["w1", "w2"]
    assert [i.name for i in plan.spare] == ["w3"]
    assert not plan.launches


def test_restarting_a_head_that_runs_is_disruptive() -> None:
    changed = NodeProbe(replace(APPLIED, start="old"), ray_runs=True)
    plan = plan_up(cluster(), with_probes(healthy(HEAD), head=changed))
    assert plan.is_disruptive
