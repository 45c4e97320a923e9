"""The classes that Ray ships, unchanged, sized by Shoal's controller with real Ray."""

from __future__ import annotations

import asyncio
from typing import Any

import boto3
import pytest

from tests.polling import until
from tests.providers.external.cluster_bed import Bed
from tests.providers.gcp.gcp_bed import node_config as gce_node_config
from tests.simcloud.aws_permissions import ADMINISTRATOR
from tests.simcloud.cloud import SimCloud
from tests.simcloud.gce_store import PROJECT as GCE_PROJECT
from tests.simcloud.hosts import Host

pytestmark = [pytest.mark.simcloud, pytest.mark.ray, pytest.mark.long]

RAYS = "ray.autoscaler._private"


def node_types(node_config: dict[str, Any], **worker: Any) -> dict[str, Any]:
    return {
        "head": {"node_config": node_config, "resources": {"CPU": 0}},
        "worker": {
            "node_config": node_config,
            "resources": {"CPU": 1},
            "min_workers": 1,
            "max_workers": 2,
            **worker,
        },
    }


async def runs_ray(host: Host) -> bool:
    return (await host.run("pgrep -x raylet")).code == 0


async def kill_in_a_launch(bed: Bed, head: Host) -> None:
    """Run the actors, for which the cluster must grow, and kill the controller in that launch."""
    directory = head.root() / "home/ubuntu/.shoal/controller"

    def launches() -> int:
        return (directory / "journal.jsonl").read_text().count('"launch_intent"')

    before = launches()
    actors = await bed.laptop.popen("exec shoal exec c.yaml 'python code/actors.py'")
    await until(lambda: launches() > before, "a launch has begun", timeout=120, every=0.02)
    killed = (directory / "controller.lock").read_text()
    (await head.run(f"kill -9 {killed}")).require("killing the controller")
    done = await actors.finish(timeout=280)
    assert "done on 2" in done.stdout, done.stdout + done.stderr
    assert (directory / "controller.lock").read_text() != killed, "another controller took over"


async def test_rays_local_class_sizes_a_cluster_of_hosts(cloud: SimCloud, laptop: Host) -> None:
    head, *workers = await asyncio.gather(*(cloud.boot() for _ in range(3)))
    bed = Bed(cloud, laptop)
    await bed.write(
        {
            "type": "external",
            "module": f"{RAYS}.local.node_provider.LocalNodeProvider",
            "head_ip": head.address,
            "worker_ips": [worker.address for worker in workers],
        }
    )
    events = await bed.up()
    assert events[-1]["event"] == "ready" and events[-1]["nodes"] == 2

    async def count() -> int:
        return sum([await runs_ray(worker) for worker in workers])

    async def is_back() -> bool:
        return await count() == 1

    assert await count() == 1
    await bed.assert_ready(2)
    await kill_in_a_launch(bed, head)
    assert await count() == 2
    await until(is_back, "the idle worker is released", timeout=90)
    await bed.down()
    assert not any([await runs_ray(host) for host in (head, *workers)])
    assert (await head.run("pgrep -f '[s]hoal.controller'")).code != 0


async def test_rays_aws_class_sizes_a_cluster_on_ec2(cloud: SimCloud, laptop: Host) -> None:
    iam = boto3.client("iam", **cloud.ec2.client_options())
    profile = "ray-autoscaler-v1"  # in an account without it, Ray sleeps 30 s for IAM
    iam.create_role(RoleName=profile, AssumeRolePolicyDocument="{}")
    iam.put_role_policy(RoleName=profile, PolicyName="all", PolicyDocument=ADMINISTRATOR)
    iam.create_instance_profile(InstanceProfileName=profile)
    iam.add_role_to_instance_profile(InstanceProfileName=profile, RoleName=profile)
    bed = Bed(cloud, laptop)
    await bed.write(
        {
            "type": "external",
            "module": f"{RAYS}.aws.node_provider.AWSNodeProvider",
            "region": "us-west-2",
            "cache_stopped_nodes": False,
        },
        auth={"ssh_user": "ubuntu"},
        available_node_types=node_types({"InstanceType": "m5.large"}),
    )
    events = await bed.up()
    assert events[-1]["event"] == "ready" and events[-1]["nodes"] == 2
    head = cloud.ec2.host(next(iter(cloud.ledger.rentals)))
    await kill_in_a_launch(bed, head)
    assert len(cloud.ledger.running()) == 3, "the launch was not repeated"
    await until(lambda: len(cloud.ledger.running()) == 2, "an idle worker ends", timeout=120)
    await bed.down()
    assert not cloud.ledger.running()


async def test_rays_gcp_class_sizes_a_cluster_on_gce() -> None:
    pytest.importorskip("googleapiclient")
    async with SimCloud(gce=True) as cloud:
        cloud.gce.store.add_default_rules()  # Ray creates none
        bed = Bed(cloud, await cloud.laptop())
        await bed.write(
            {
                "type": "external",
                "module": "gcp_nodes.GCPNodeProvider",
                "region": "us-west1",
                "availability_zone": "us-west1-a",
                "project_id": GCE_PROJECT,
            },
            auth={"ssh_user": "ubuntu"},
            available_node_types=node_types(gce_node_config()),
        )
        events = await bed.up()
        assert events[-1]["event"] == "ready" and events[-1]["nodes"] == 2
        (head,) = [
            cloud.gce.host(vm.name)
            for vm in cloud.gce.store.vms.values()
            if vm.resource["labels"]["ray-node-type"] == "head"
        ]
        await kill_in_a_launch(bed, head)
        assert len(cloud.ledger.running()) == 3, "the launch was not repeated"
        await until(lambda: len(cloud.ledger.running()) == 2, "an idle worker ends", timeout=200)
        await bed.down()
        assert not cloud.ledger.running()


def fake_nodes(head: Host) -> dict[str, Any]:
    return {
        "type": "external",
        "module": "fake_nodes.FakeMultiNodeProvider",
        "head_ip": head.address,
        "disable_node_updaters": True,
    }


async def test_rays_fake_nodes_join_a_head_that_exists(cloud: SimCloud, laptop: Host) -> None:
    """Workers only: they start Ray themselves, and the class keeps them in its memory."""
    head = await cloud.boot()
    bed = Bed(cloud, laptop)
    await bed.write(fake_nodes(head), shoal={"auth": "none"})
    events = await bed.up()
    assert events[-1]["event"] == "ready" and events[-1]["nodes"] == 2

    async def raylets() -> int:
        return len((await head.run("pgrep -x raylet")).stdout.split())

    async def is_back() -> bool:
        return await raylets() == 2

    await bed.assert_ready(2)
    await bed.run_actors()
    assert await raylets() == 3
    await until(is_back, "the idle worker ends", timeout=90)
    done = await bed.shoal("down c.yaml --yes")
    assert done.code == 0, done.stdout + done.stderr
    assert "the provider no longer knows worker-" in done.stderr, "it forgets them with its process"


async def test_the_controller_of_rays_fake_nodes_is_killed_in_a_launch(
    cloud: SimCloud, laptop: Host
) -> None:
    """The class forgets its nodes with its process, so they run on, which the user is warned of."""
    head = await cloud.boot()
    bed = Bed(cloud, laptop)
    await bed.write(fake_nodes(head), shoal={"auth": "none"})
    await bed.up()
    await kill_in_a_launch(bed, head)
    done = await bed.shoal("down c.yaml --yes")
    assert done.code == 0, done.stdout + done.stderr
    assert "the provider no longer knows worker-" in done.stderr
