"""A new worker on AWS for a pending task, with and without a baked image: seconds from the
submission of the task until it runs. Setup takes 60 s and a boot 20 s, both shortened by a factor
that is printed. Ray's launcher and autoscaler do the same, without images."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from tests.simcloud.cloud import SimCloud
from tests.simcloud.fixtures import why_not
from tests.simcloud.hosts import Host

from benchmarks.aws_up import TIMEOUT_SECONDS, client, create_ray_instance_profile
from benchmarks.cluster_launch.bench_cluster import RAY
from benchmarks.report import report

FACTOR = 4
SETUP_SECONDS = 60 / FACTOR
BOOT_SECONDS = 20 / FACTOR
MAX_OVERHEAD_SECONDS = 8.0

# Occupies some workers, and prints how long a task waits for one more.
WAIT_FOR_TASK = """
import sys, time, ray
ray.init(log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=1)
class Holder:
    def is_up(self):
        return True

@ray.remote(num_cpus=1)
def start():
    return time.time()

holders = [Holder.remote() for _ in range(int(sys.argv[1]))]
ray.get([holder.is_up.remote() for holder in holders])
submitted = time.time()
print("waited", ray.get(start.remote()) - submitted)
"""


def cluster_yaml(*, bake: bool) -> str:
    """A head and no worker yet. JSON is YAML."""
    node_config = {"InstanceType": "m5.large"}
    config = " --autoscaling-config=~/ray_bootstrap_config.yaml"
    without_cpus = RAY.head_start.replace("--num-cpus=1", "--num-cpus=0")
    return json.dumps(
        {
            "cluster_name": "bench",
            "max_workers": 2,
            "upscaling_speed": 10,
            "provider": {"type": "aws", "region": "us-west-2", "cache_stopped_nodes": False},
            "auth": {"ssh_user": "ubuntu"},
            "available_node_types": {
                "head": {"node_config": node_config, "resources": {"CPU": 0}},
                "worker": {
                    "node_config": node_config,
                    "max_workers": 2,
                    "resources": {"CPU": 1},
                },
            },
            "head_node_type": "head",
            "setup_commands": [],
            "head_setup_commands": [],
            "worker_setup_commands": [f"sleep {SETUP_SECONDS}"],
            "head_start_ray_commands": [
                "ray stop",
                f"RAY_enable_autoscaler_v2=0 {without_cpus}{config}",
            ],
            "worker_start_ray_commands": ["ray stop", RAY.worker_start],
            **({"shoal": {"bake": True}} if bake else {}),
        }
    )


async def waits(launcher: str, *, bake: bool = False, nodes: int = 1) -> list[float]:
    """How long the tasks wait that need the first, the second, ... worker of a new cluster."""
    async with SimCloud() as cloud:
        laptop = await cloud.laptop()
        await cloud.ec2.warm_up()
        await laptop.run("cat > c.yaml", stdin=cluster_yaml(bake=bake))
        await laptop.run("cat > wait.py", stdin=WAIT_FOR_TASK)
        up, copy = f"{launcher} up -y c.yaml", f"{launcher} rsync-up c.yaml wait.py wait.py"
        if launcher == "ray":
            create_ray_instance_profile(cloud)
            up = "ray up -y --no-config-cache c.yaml"
        await _command(laptop, up)
        await _command(laptop, copy)
        cloud.ec2.boot_delay(BOOT_SECONDS)
        seconds = []
        for occupied in range(nodes):
            output = await _command(laptop, f"{launcher} exec c.yaml 'python wait.py {occupied}'")
            (line,) = [line for line in output.splitlines() if line.startswith("waited ")]
            seconds.append(float(line.split()[1]))
        if bake:
            _check_images(cloud)
    return seconds


def _check_images(cloud: SimCloud) -> None:
    """Make sure that the last worker was started from an image of the first."""
    ec2 = client(cloud)
    filters: list[dict[str, Any]] = [{"Name": "tag-key", "Values": ["shoal-image"]}]
    baked = {i["ImageId"] for i in ec2.describe_images(Owners=["self"], Filters=filters)["Images"]}
    pages = ec2.describe_instances()["Reservations"]
    used = [record["ImageId"] in baked for page in pages for record in page["Instances"]]
    if sum(used) != 1:
        raise RuntimeError(f"{sum(used)} of {len(used)} instances are from a baked image")


async def _command(laptop: Host, command: str) -> str:
    done = await laptop.run(command, timeout=TIMEOUT_SECONDS)
    return done.require(command).stdout


async def main() -> None:
    if reason := why_not():
        sys.exit(f"cannot run on this machine: {reason}")
    print(f"setup {SETUP_SECONDS:.0f} s, boot {BOOT_SECONDS:.0f} s: 60 s and 20 s / {FACTOR}")
    (without,) = await waits("shoal")
    print(f"shoal without baking        {without:5.1f} s", flush=True)
    first, baked = await waits("shoal", bake=True, nodes=2)
    print(f"shoal, becomes the image    {first:5.1f} s", flush=True)
    print(f"shoal from the baked image  {baked:5.1f} s", flush=True)
    (ray,) = await waits("ray")
    print(f"ray                         {ray:5.1f} s", flush=True)
    report(
        "aws_bake",
        value=baked,
        unit="s",
        peer=ray,
        limit=BOOT_SECONDS,
        ratio=baked / without,
        bar=f"at most {MAX_OVERHEAD_SECONDS:.0f} s after a boot",
        passed=baked <= BOOT_SECONDS + MAX_OVERHEAD_SECONDS,
    )


if __name__ == "__main__":
    asyncio.run(main())
