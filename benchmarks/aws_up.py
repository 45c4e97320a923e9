"""`up` of a head and four workers on AWS, with instances that boot in 20 s: the overhead of a
launcher over one boot and the same steps by hand, best of three rounds or as many as the argument
says. Also counts the AWS calls for 4 and for 64 workers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import boto3
from tests.polling import until
from tests.simcloud.aws_permissions import ADMINISTRATOR
from tests.simcloud.cloud import SimCloud
from tests.simcloud.fixtures import why_not
from tests.simcloud.hosts import Host

from benchmarks.cluster_launch.bench_cluster import HERE, RAY, node_count
from benchmarks.cluster_launch.cpu_usage import wait_until_quiet
from benchmarks.report import report

WORKERS = 4
MANY = 64
ROUNDS = 3
BOOT_SECONDS = 20.0
TIMEOUT_SECONDS = 400.0
MAX_OVERHEAD_SECONDS = 3.0
MAX_SHARE_OF_RAY = 0.1
_MAX_QUIET_WAIT_SECONDS = 30.0

NO_TOKEN = {"RAY_AUTH_MODE": "disabled"}
SHOAL_TOKEN = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN_PATH": "/home/ubuntu/.shoal/auth_token",
}
HEAD_TAG = {"Key": "ray-node-type", "Value": "head"}

WAIT_FOR_HEAD = "until (exec 3<>/dev/tcp/$RAY_HEAD_IP/6379) 2>/dev/null; do sleep 0.1; done"

Launcher = Callable[[SimCloud, Host], Awaitable[Any]]


def cluster_yaml(workers: int) -> str:
    """A cluster file that both Ray and Shoal read. JSON is YAML."""
    node_config = {"InstanceType": "m5.large"}
    worker = {"node_config": node_config, "min_workers": workers, "max_workers": workers}
    # Ray's autoscaler v2 launches one node at a time.
    use_autoscaler_v1 = "RAY_enable_autoscaler_v2=0 "
    config = " --autoscaling-config=~/ray_bootstrap_config.yaml"
    return json.dumps(
        {
            "cluster_name": "bench",
            "max_workers": workers,
            "provider": {"type": "aws", "region": "us-west-2", "cache_stopped_nodes": False},
            "auth": {"ssh_user": "ubuntu"},
            "available_node_types": {
                "ray.head.default": {"node_config": node_config, "resources": {}},
                "ray.worker.default": {**worker, "resources": {}},
            },
            "head_node_type": "ray.head.default",
            "setup_commands": [],
            "head_setup_commands": [],
            "head_start_ray_commands": ["ray stop", use_autoscaler_v1 + RAY.head_start + config],
            "worker_start_ray_commands": ["ray stop", RAY.worker_start],
        }
    )


@contextlib.asynccontextmanager
async def account(workers: int) -> AsyncIterator[tuple[SimCloud, Host]]:
    """A new account; everything that the launchers read is cached."""
    async with SimCloud() as cloud:
        laptop = await cloud.laptop()
        await cloud.ec2.warm_up()
        await laptop.run("cat > c.yaml", stdin=cluster_yaml(workers))
        for command in ("ray --help", "shoal up --help", "python -c 'import boto3'"):
            (await laptop.run(command, timeout=60)).require(command)
        yield cloud, laptop


async def by_hand(cloud: SimCloud, laptop: Host) -> None:
    """The fastest script: it ignores other clusters, failures and later runs."""
    ec2 = client(cloud)
    ec2.import_key_pair(KeyName="k", PublicKeyMaterial=cloud.laptop_key.public.encode())
    launch_args = {"ImageId": "ami-0387d929287ab193e", "InstanceType": "m5.large", "KeyName": "k"}
    group = ec2.describe_security_groups(GroupNames=["default"])["SecurityGroups"][0]["GroupId"]
    allow_all = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=allow_all)
    tags = [{"ResourceType": "instance", "Tags": [HEAD_TAG]}]
    (head,) = ec2.run_instances(MinCount=1, MaxCount=1, TagSpecifications=tags, **launch_args)[
        "Instances"
    ]
    workers = ec2.run_instances(MinCount=WORKERS, MaxCount=WORKERS, **launch_args)["Instances"]
    export_head_ip = f"export RAY_HEAD_IP={head['PrivateIpAddress']}"
    arguments = [head["PublicIpAddress"], f"{export_head_ip}; {RAY.head_start}"]
    for worker in workers:
        arguments += [
            worker["PublicIpAddress"],
            f"{export_head_ip}; {WAIT_FOR_HEAD}; {RAY.worker_start}",
        ]
    script = ["bash", str(HERE / "start_by_hand.sh"), *arguments]
    (await laptop.run(script, timeout=TIMEOUT_SECONDS)).require("the script")


async def shoal_up(cloud: SimCloud, laptop: Host) -> None:
    await _command(laptop, ["shoal", "up", "--yes", "c.yaml"])


async def ray_up(cloud: SimCloud, laptop: Host) -> None:
    """Ray's launcher returns when the head is up; its autoscaler launches the workers."""
    await _command(laptop, ["ray", "up", "-y", "--no-config-cache", "c.yaml"])


async def _command(laptop: Host, arguments: list[str]) -> None:
    (await laptop.run(arguments, timeout=TIMEOUT_SECONDS)).require(shlex.join(arguments))


async def timed(name: str, launcher: Launcher, env: Mapping[str, str]) -> float:
    """Seconds from the start of a launcher until all nodes have joined and it has returned."""
    async with account(WORKERS) as (cloud, laptop):
        if launcher is ray_up:
            create_ray_instance_profile(cloud)
        cloud.ec2.boot_delay(BOOT_SECONDS)
        await wait_until_quiet(_MAX_QUIET_WAIT_SECONDS)
        started = time.monotonic()
        running = asyncio.ensure_future(launcher(cloud, laptop))
        try:
            head = await _booted_head(cloud)
            async with node_count(head, env) as count:
                joined = await asyncio.wait_for(count.reaches(WORKERS + 1), TIMEOUT_SECONDS)
            await running
            finished = max(joined, time.monotonic())
        finally:
            running.cancel()
    print(
        f"{name:<10} all nodes after {joined - started:5.1f} s, "
        f"finished after {finished - started:5.1f} s",
        flush=True,
    )
    return finished - started


async def _booted_head(cloud: SimCloud) -> Host:
    """The head's host, once its instance is running."""
    filters = [
        {"Name": f"tag:{HEAD_TAG['Key']}", "Values": [HEAD_TAG["Value"]]},
        {"Name": "instance-state-name", "Values": ["running"]},
    ]
    ec2 = client(cloud)
    instance_ids: list[str] = []

    async def is_running() -> bool:
        answer = await asyncio.to_thread(ec2.describe_instances, Filters=filters)
        instance_ids.extend(i["InstanceId"] for r in answer["Reservations"] for i in r["Instances"])
        return bool(instance_ids)

    await until(is_running, "the head is running", timeout=TIMEOUT_SECONDS, every=0.2)
    return cloud.ec2.host(instance_ids[0])


async def count_aws_calls(workers: int) -> int:
    """How many AWS calls `shoal up` makes until all instances are launched and listed."""
    async with account(workers) as (cloud, laptop):
        cloud.ec2.boot_delay(3600)
        up = await laptop.popen(["shoal", "up", "--yes", "--json", "c.yaml"])
        async for line in up.stdout:
            if json.loads(line)["event"] == "node":
                break
        up.kill()
        await up.wait()
        calls = sum(cloud.ledger.calls().values())
    print(f"{workers:2} workers: {calls} AWS calls until all are launched", flush=True)
    return calls


def client(cloud: SimCloud) -> Any:
    return boto3.client("ec2", **cloud.ec2.client_options())


def create_ray_instance_profile(cloud: SimCloud) -> None:
    """Simulate an account in which Ray was used before: in a new one it sleeps 30 s for IAM."""
    iam = boto3.client("iam", **cloud.ec2.client_options())
    name = "ray-autoscaler-v1"
    iam.create_role(RoleName=name, AssumeRolePolicyDocument="{}")
    iam.put_role_policy(RoleName=name, PolicyName="all", PolicyDocument=ADMINISTRATOR)
    iam.create_instance_profile(InstanceProfileName=name)
    iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)


async def main() -> None:
    if reason := why_not():
        sys.exit(f"cannot run on this machine: {reason}")
    few, many = await count_aws_calls(WORKERS), await count_aws_calls(MANY)
    launchers: dict[str, tuple[Launcher, Mapping[str, str]]] = {
        "by hand": (by_hand, NO_TOKEN),
        "shoal up": (shoal_up, SHOAL_TOKEN),
        "ray up": (ray_up, NO_TOKEN),
    }
    # Interleaved, so that all see the same load; other programs can only make a run slower.
    best = dict.fromkeys(launchers, TIMEOUT_SECONDS)
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS):
        for name, (launcher, env) in launchers.items():
            best[name] = min(best[name], await timed(name, launcher, env))
    limit, shoal, ray = best.values()
    overhead, ray_overhead = shoal - limit, ray - limit
    print(f"overhead of shoal up: {overhead:.1f} s; of ray up: {ray_overhead:.1f} s")
    report(
        "aws_up",
        value=shoal,
        unit="s",
        peer=ray,
        limit=limit,
        ratio=overhead / ray_overhead,
        bar=f"overhead at most {MAX_OVERHEAD_SECONDS:.0f} s and {MAX_SHARE_OF_RAY:.0%} of Ray's, "
        f"and no more AWS calls for {MANY} workers than for {WORKERS}",
        # The number of list calls depends on timing.
        passed=overhead <= min(MAX_OVERHEAD_SECONDS, MAX_SHARE_OF_RAY * ray_overhead)
        and many <= few + 2,
    )


if __name__ == "__main__":
    asyncio.run(main())
