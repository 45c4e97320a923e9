"""Ray's own launcher brings up its own AWS example here: the bed carries a program not ours.

The time it takes is printed, because it is the yardstick for ours.
"""

from __future__ import annotations

import asyncio
import time

import boto3
import pytest

from tests.polling import until
from tests.simcloud.aws_permissions import ADMINISTRATOR
from tests.simcloud.cloud import SimCloud
from tests.simcloud.hosts import Host

pytestmark = [pytest.mark.simcloud, pytest.mark.ray, pytest.mark.long]

CLUSTER = """
cluster_name: aws-example-minimal
max_workers: 2
idle_timeout_minutes: 5
provider:
    type: aws
    region: us-west-2
    cache_stopped_nodes: false
auth:
    ssh_user: ubuntu
available_node_types:
    ray.head.default:
        resources: {}
        node_config:
            InstanceType: m5.large
    ray.worker.default:
        min_workers: 2
        max_workers: 2
        resources: {}
        node_config:
            InstanceType: m5.large
head_node_type: ray.head.default
head_start_ray_commands:
    - >-
        RAY_enable_autoscaler_v2=0 ray start --head --port=6379 --object-manager-port=8076
        --include-dashboard=false --disable-usage-stats --object-store-memory=100000000
        --autoscaling-config=~/ray_bootstrap_config.yaml
worker_start_ray_commands:
    - >-
        ray start --address=$RAY_HEAD_IP:6379 --object-manager-port=8076
        --disable-usage-stats --object-store-memory=100000000
"""

COUNT_NODES = """
import ray
ray.init(address="auto", log_to_driver=False)
print("alive", sum(node["Alive"] for node in ray.nodes()))
"""


def make_the_profile_ray_looks_for(cloud: SimCloud) -> None:
    """Have an account in which Ray was used before: in a new one it sleeps 30 s for IAM."""
    iam = boto3.client("iam", **cloud.ec2.client_options())
    name = "ray-autoscaler-v1"
    iam.create_role(RoleName=name, AssumeRolePolicyDocument="{}")
    iam.put_role_policy(RoleName=name, PolicyName="all", PolicyDocument=ADMINISTRATOR)
    iam.create_instance_profile(InstanceProfileName=name)
    iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)


async def test_ray_up_brings_up_its_aws_example_with_two_workers(
    cloud: SimCloud, laptop: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    await laptop.run("cat > cluster.yaml", stdin=CLUSTER)
    await asyncio.to_thread(make_the_profile_ray_looks_for, cloud)
    began = time.monotonic()
    up = await laptop.run(["ray", "up", "-y", "cluster.yaml", "--no-config-cache"], timeout=100)
    assert up.code == 0, up.stdout + up.stderr
    head_was_up = time.monotonic() - began

    def three_rented() -> bool:
        return len(cloud.ledger.running()) == 3

    await until(three_rented, "the autoscaler asked for two workers", timeout=60)
    head = cloud.ec2.host(next(iter(cloud.ledger.rentals)))

    async def three_alive() -> bool:
        counted = await head.run(["python", "-c", COUNT_NODES], user="ubuntu")
        return "alive 3" in counted.stdout

    await until(three_alive, "three Ray nodes are alive", timeout=60, every=0.5)
    took = time.monotonic() - began

    with capsys.disabled():
        print(
            f"\nray up: head after {head_was_up:.1f} s, three nodes after {took:.1f} s, "
            f"{sum(cloud.ledger.calls().values())} AWS calls"
        )
