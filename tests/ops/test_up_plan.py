"""What `up` decides to do, from data alone."""

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

NOT_MORE: tuple[RestartPolicy, ...] = ("never", "only")
DONE = AppliedState(files="f", setup="s", start="r")
WELL = NodeProbe(DONE, ray_runs=True)


def machine(name: str, node_type: str = "worker", age: int = 0) -> Instance:
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
    return ObservedCluster(instances, dict.fromkeys(ids, WELL), dict.fromkeys(ids, DONE))


def with_vitals(seen: ObservedCluster, **vitals: NodeProbe) -> ObservedCluster:
    """The same, with some machines (by name) in another state."""
    changed = {
        i.id: vitals[i.name.replace("-", "_")]
        for i in seen.instances
        if i.name.replace("-", "_") in vitals
    }
    return replace(seen, probes={**seen.probes, **changed})


def touched(plan: UpPlan) -> list[tuple[str, str]]:
    return [(update.instance.name, update.mode) for update in plan.updates]


def words(plan: UpPlan) -> list[tuple[str, str]]:
    return [(step.action, step.subject) for step in plan.steps]


HEAD = machine("head", "head")


def test_an_empty_cluster_gets_its_head_and_its_minimum() -> None:
    plan = plan_up(cluster(min_workers=2), ObservedCluster())
    assert words(plan) == [("create", "1 x head"), ("create", "2 x worker")]
    assert [(launch.role, launch.count) for launch in plan.launches] == [("head", 1), ("worker", 2)]


def test_a_cluster_that_is_as_asked_for_needs_nothing() -> None:
    seen = healthy(HEAD, machine("worker-1"), machine("worker-2"))
    assert plan_up(cluster(min_workers=2), seen).is_empty


def test_workers_beyond_the_minimum_are_left_alone() -> None:
    assert plan_up(cluster(min_workers=0), healthy(HEAD, machine("worker-1"))).is_empty


def test_only_what_is_missing_is_created() -> None:
    plan = plan_up(cluster(min_workers=3), healthy(HEAD, machine("worker-1")))
    assert words(plan) == [("create", "2 x worker")]
    assert "1 exist" in plan.steps[0].reason


def test_a_node_where_ray_does_not_run_is_started_alone() -> None:
    seen = with_vitals(healthy(HEAD, machine("worker-1")), worker_1=NodeProbe(DONE))
    plan = plan_up(cluster(min_workers=1), seen)
    assert touched(plan) == [("worker-1", "full")]
    assert plan.steps[0].reason == "Ray is not running on it"
    assert not plan.is_disruptive


def silent(seen: ObservedCluster, *names: str) -> ObservedCluster:
    """The same, with some machines that did not say how they are."""
    mute = {i.id for i in seen.instances if i.name in names}
    return replace(seen, probes={id: v for id, v in seen.probes.items() if id not in mute})


@pytest.mark.parametrize("restart", ["as needed", "never"])
def test_a_machine_that_does_not_say_how_it_is_keeps_its_ray_if_that_runs(
    restart: RestartPolicy,
) -> None:
    seen = silent(healthy(HEAD, machine("worker-1"), machine("worker-2")), "head", "worker-1")
    plan = plan_up(cluster(min_workers=2), seen, restart)
    assert touched(plan) == [("head", "update"), ("worker-1", "update")]
    assert plan.steps[0].reason == "could not read its state"
    assert not plan.is_disruptive


def test_a_machine_that_does_not_say_how_it_is_is_restarted_when_that_is_asked_for() -> None:
    seen = silent(healthy(HEAD, machine("worker-1")), "worker-1")
    plan = plan_up(cluster(min_workers=1), seen, "only")
    assert touched(plan) == [("head", "restart"), ("worker-1", "restart")]


def test_a_machine_that_boots_has_no_ray_to_be_careful_about() -> None:
    booting = replace(machine("worker-1"), state=State.PENDING)
    plan = plan_up(cluster(min_workers=1), silent(healthy(HEAD, booting), "worker-1"))
    assert touched(plan) == [("worker-1", "full")]
    assert plan.steps[0].reason == "Ray is not running on it"


def test_a_head_without_ray_takes_its_workers_along() -> None:
    seen = with_vitals(healthy(HEAD, machine("worker-1")), head=NodeProbe(DONE))
    plan = plan_up(cluster(min_workers=1), seen)
    assert touched(plan) == [("head", "full"), ("worker-1", "restart")]
    assert plan.is_disruptive


def test_workers_of_a_lost_head_are_kept_and_restarted() -> None:
    plan = plan_up(cluster(min_workers=1), healthy(machine("worker-1")))
    assert words(plan) == [("create", "1 x head"), ("restart", "worker-1")]
    assert plan.steps[1].reason == "its head is new"


OLD_SETUP = NodeProbe(replace(DONE, setup="old"), ray_runs=True)
OLD_FILES = NodeProbe(replace(DONE, files="old", setup="old"), ray_runs=True)
OLD_START = NodeProbe(replace(DONE, start="old"), ray_runs=True)


def test_a_changed_setup_is_done_again_and_restarts_the_node() -> None:
    seen = with_vitals(healthy(HEAD, machine("worker-1")), worker_1=OLD_SETUP)
    plan = plan_up(cluster(min_workers=1), seen)
    assert touched(plan) == [("worker-1", "full")]
    assert plan.steps[0].reason == "its setup changed"


def test_changed_files_alone_are_named_as_the_reason() -> None:
    seen = with_vitals(healthy(HEAD, machine("worker-1")), worker_1=OLD_FILES)
    assert plan_up(cluster(min_workers=1), seen).steps[0].reason == "its files changed"


def test_with_no_restart_files_and_setup_are_updated_and_ray_is_left_alone() -> None:
    seen = with_vitals(healthy(HEAD, machine("worker-1")), head=OLD_START, worker_1=OLD_SETUP)
    plan = plan_up(cluster(min_workers=1), seen, "never")
    assert touched(plan) == [("worker-1", "update")]
    assert not plan.is_disruptive


def test_changed_start_commands_restart_ray_without_another_setup() -> None:
    seen = with_vitals(healthy(HEAD, machine("worker-1")), worker_1=OLD_START)
    assert touched(plan_up(cluster(min_workers=1), seen)) == [("worker-1", "restart")]


def test_restart_only_restarts_every_node() -> None:
    plan = plan_up(cluster(min_workers=1), healthy(HEAD, machine("worker-1")), "only")
    assert touched(plan) == [("head", "restart"), ("worker-1", "restart")]
    assert plan.is_disruptive


def test_a_machine_that_cannot_be_reached_is_asked_for_anew() -> None:
    lost = replace(machine("worker-1"), state=State.UNREACHABLE)
    plan = plan_up(cluster(min_workers=1), healthy(HEAD, lost))
    assert words(plan) == [("create", "1 x worker")]


def test_a_lower_maximum_ends_the_youngest_workers() -> None:
    old, young = machine("worker-1", age=0), machine("worker-2", age=5)
    plan = plan_up(cluster(min_workers=0, max_workers=1), healthy(HEAD, young, old))
    assert plan.terminate == (young,)
    assert "max_workers is 1" in plan.steps[0].reason


def test_workers_of_a_type_that_left_the_file_are_ended() -> None:
    stranger = machine("worker-1", node_type="gpu")
    plan = plan_up(cluster(min_workers=0), healthy(HEAD, stranger))
    assert plan.terminate == (stranger,)
    assert "no longer in the file" in plan.steps[0].reason


def test_a_head_of_another_type_is_replaced() -> None:
    old = machine("head", node_type="small")
    plan = plan_up(cluster(min_workers=0), healthy(old))
    assert words(plan) == [("create", "1 x head"), ("terminate", "head")]


def on_other_machines(spec: ClusterSpec, *names: str) -> ClusterSpec:
    """The same, with another node_config for these types."""
    changed = {n: replace(spec.node_types[n], node_config={"InstanceType": "x"}) for n in names}
    return replace(spec, node_types={**spec.node_types, **changed})


def made(spec: ClusterSpec, *instances: Instance) -> list[Instance]:
    """The machines as they are when they were launched for this spec."""
    return [replace(i, launch_hash=launch_hash(spec, i.node_type)) for i in instances]


def test_a_worker_with_another_node_config_is_replaced() -> None:
    before = cluster(min_workers=2)
    old = made(before, HEAD, machine("worker-1"), machine("worker-2"))
    after = on_other_machines(before, "worker")
    (new,) = made(after, machine("worker-3"))
    plan = plan_up(after, healthy(old[0], old[1], new))
    assert words(plan) == [("create", "1 x worker"), ("terminate", "worker-1")]
    assert "node_config" in plan.steps[1].reason
    assert plan.replaced == plan.terminate == (old[1],)
    assert plan.is_disruptive
    assert plan_up(before, healthy(*old)).is_empty, "as long as the file says the same"


def test_a_head_with_another_node_config_is_replaced_and_its_disks_are_spoken_of() -> None:
    before = cluster(min_workers=1)
    after = on_other_machines(before, "head")
    plan = plan_up(after, healthy(*made(before, HEAD, machine("worker-1"))))
    assert words(plan) == [("create", "1 x head"), ("terminate", "head"), ("restart", "worker-1")]
    assert "disks" in plan.steps[1].reason


def test_new_volumes_make_another_machine_of_it() -> None:
    """It would wait in vain for disks that only a launch brings."""
    before = cluster(min_workers=1)
    seen = healthy(*made(before, HEAD, machine("worker-1")))
    volumes = {"/data": VolumeSpec(device="/dev/sdf", size=100, node_types=("worker",))}
    after = replace(before, shoal=replace(before.shoal, volumes=volumes))
    assert words(plan_up(after, seen)) == [("create", "1 x worker"), ("terminate", "worker-1")]


def test_with_no_restart_machines_of_another_node_config_are_left_and_named() -> None:
    before = cluster(min_workers=1)
    old = made(before, HEAD, machine("worker-1"))
    after = on_other_machines(before, "head", "worker")
    for restart in NOT_MORE:
        plan = plan_up(after, healthy(*old), restart)
        assert not plan.launches
        assert not plan.terminate
        assert plan.outdated == tuple(old)
    assert not plan_up(after, healthy(*old)).outdated, "those are replaced"


def test_a_machine_that_does_not_say_what_it_was_made_from_is_as_asked_for() -> None:
    spec = on_other_machines(cluster(min_workers=1), "head", "worker")
    plan = plan_up(spec, healthy(HEAD, machine("worker-1")))
    assert plan.is_empty
    assert not plan.outdated


def test_a_worker_that_is_switched_off_is_not_switched_on_as_something_else() -> None:
    before = cluster(min_workers=1)
    after = on_other_machines(before, "worker")
    off = replace(made(before, machine("worker-1"))[0], state=State.STOPPED)
    plan = plan_up(after, healthy(HEAD, off))
    assert words(plan) == [("create", "1 x worker"), ("terminate", "worker-1")]


def test_the_old_initial_workers_are_created_beyond_the_minimum() -> None:
    spec = _with_initial(cluster(min_workers=1, max_workers=3), initial=9)
    assert words(plan_up(spec, ObservedCluster()))[1] == ("create", "3 x worker")


def _with_initial(spec: ClusterSpec, initial: int) -> ClusterSpec:
    return replace(spec, scaling=replace(spec.scaling, initial_workers=initial))


def test_workers_that_are_switched_off_wait_for_the_load_beyond_the_minimum() -> None:
    off = [replace(machine(f"w{n}", age=n), state=State.STOPPED) for n in (1, 2, 3)]
    plan = plan_up(cluster(min_workers=2), healthy(HEAD, *off))
    assert [name for name, _ in touched(plan)] == ["w1", "w2"]
    assert [i.name for i in plan.spare] == ["w3"]
    assert not plan.launches
