"""`up` of a head and four workers on GCP, with instances that boot in 20 s: the overhead of a
launcher over one boot and the same steps by hand, until the command returns and all nodes have
joined, best of three rounds. Also counts the calls that `shoal up` makes for each node."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest
from tests.polling import until
from tests.simcloud.cloud import SimCloud
from tests.simcloud.fixtures import why_not
from tests.simcloud.gce_store import PROJECT
from tests.simcloud.gce_tls import BUNDLE
from tests.simcloud.google_names import lead_to
from tests.simcloud.hosts import Host

from benchmarks.aws_up import NO_TOKEN, SHOAL_TOKEN, WAIT_FOR_HEAD
from benchmarks.cluster_launch.bench_cluster import HERE, RAY, node_count
from benchmarks.cluster_launch.cpu_usage import wait_until_quiet
from benchmarks.report import report
from shoal.core.clock import SystemClock
from shoal.providers.gcp.gcp_client import GcpClient

WORKERS = 4
ROUNDS = 3
BOOT_SECONDS = 20.0
TIMEOUT_SECONDS = 400.0
MAX_OVERHEAD_SECONDS = 3.0
MAX_SHARE_OF_RAY = 0.1
_MAX_QUIET_WAIT_SECONDS = 30.0
ZONE = "us-west1-a"
IMAGE = "projects/debian-cloud/global/images/family/debian-12"
# Ray's own client trusts what this variable names.
RAY_CLIENT = f"HTTPLIB2_CA_CERTS={BUNDLE} "
RAY_ACCOUNT = f"ray-autoscaler-sa-v1@{PROJECT}.iam.gserviceaccount.com"
RAY_ROLES = (
    "roles/storage.objectAdmin",
    "roles/compute.admin",
    "roles/iam.serviceAccountUser",
    "roles/iam.roleViewer",
)

Launcher = Callable[[SimCloud, Host], Awaitable[Any]]


def node_config() -> dict[str, Any]:
    disk = {"boot": True, "initializeParams": {"diskSizeGb": 50, "sourceImage": IMAGE}}
    return {"machineType": "n1-standard-2", "disks": [{**disk, "autoDelete": True}]}


def cluster_yaml() -> str:
    """A cluster file that both Ray and Shoal read. JSON is YAML."""
    worker = {"node_config": node_config(), "min_workers": WORKERS, "max_workers": WORKERS}
    # Ray's autoscaler v2 launches one node at a time.
    use_autoscaler_v1 = f"RAY_enable_autoscaler_v2=0 {RAY_CLIENT}"
    config = " --autoscaling-config=~/ray_bootstrap_config.yaml"
    region = {"region": "us-west1", "availability_zone": ZONE}
    return json.dumps(
        {
            "cluster_name": "bench",
            "max_workers": WORKERS,
            "provider": {"type": "gcp", "project_id": PROJECT, **region},
            "auth": {"ssh_user": "ubuntu"},
            "available_node_types": {
                "ray_head_default": {"node_config": node_config(), "resources": {"CPU": 2}},
                "ray_worker_small": {**worker, "resources": {"CPU": 2}},
            },
            "head_node_type": "ray_head_default",
            "setup_commands": [],
            "head_setup_commands": [],
            "head_start_ray_commands": ["ray stop", use_autoscaler_v1 + RAY.head_start + config],
            "worker_start_ray_commands": ["ray stop", RAY.worker_start],
        }
    )


@contextlib.asynccontextmanager
async def project() -> AsyncIterator[tuple[SimCloud, Host]]:
    """A new project with the firewall rules that Google gives its default network; everything that
    the launchers read is cached."""
    async with SimCloud(gce=True) as cloud:
        cloud.gce.store.add_default_rules()
        laptop = await cloud.laptop()
        await laptop.run("cat > c.yaml", stdin=cluster_yaml())
        for command in ("ray --help", "shoal up --help", "python -c 'import googleapiclient'"):
            (await laptop.run(command, timeout=60)).require(command)
        yield cloud, laptop


async def by_hand(cloud: SimCloud, laptop: Host) -> None:
    """The fastest script: it ignores other clusters, failures and later runs."""
    with pytest.MonkeyPatch.context() as patch:
        lead_to(cloud.gce, patch)
        gcp = GcpClient(PROJECT, SystemClock())
        key = {"key": "ssh-keys", "value": f"ubuntu:{cloud.laptop_key.public.strip()}"}
        interface = {
            "subnetwork": "regions/us-west1/subnetworks/default",
            "accessConfigs": [{"name": "External NAT", "type": "ONE_TO_ONE_NAT"}],
        }
        common = {
            **node_config(),
            "networkInterfaces": [interface],
            "metadata": {"items": [key]},
        }
        machine_type = f"zones/{ZONE}/machineTypes/n1-standard-2"
        labels = {"ray-node-type": "head"}
        names = [f"w-{index}" for index in range(WORKERS)]
        path = f"zones/{ZONE}/instances"
        head = {**common, "name": "h", "labels": labels, "machineType": machine_type}
        bulk = {
            "count": str(WORKERS),
            "perInstanceProperties": {name: {} for name in names},
            "instanceProperties": common,
        }
        await asyncio.gather(
            gcp.perform("POST", path, head), gcp.perform("POST", f"{path}/bulkInsert", bulk)
        )
        records = await asyncio.gather(
            *(gcp.compute("GET", f"{path}/{name}") for name in ("h", *names))
        )
    interfaces = [record["networkInterfaces"][0] for record in records]
    public = [interface["accessConfigs"][0]["natIP"] for interface in interfaces]
    export_head_ip = f"export RAY_HEAD_IP={interfaces[0]['networkIP']}"
    arguments = [public[0], f"{export_head_ip}; {RAY.head_start}"]
    for address in public[1:]:
        arguments += [address, f"{export_head_ip}; {WAIT_FOR_HEAD}; {RAY.worker_start}"]
    script = ["bash", str(HERE / "start_by_hand.sh"), *arguments]
    (await laptop.run(script, timeout=TIMEOUT_SECONDS)).require("the script")


async def shoal_up(cloud: SimCloud, laptop: Host) -> None:
    await _command(laptop, "shoal up --yes c.yaml")


async def ray_up(cloud: SimCloud, laptop: Host) -> None:
    """Ray's launcher returns when the head is up; its autoscaler launches the workers."""
    await _command(laptop, f"{RAY_CLIENT}ray up -y --no-config-cache c.yaml")


async def _command(laptop: Host, command: str) -> None:
    arguments = ["bash", "-c", command]
    (await laptop.run(arguments, timeout=TIMEOUT_SECONDS)).require(shlex.join(arguments))


def create_ray_account(cloud: SimCloud) -> None:
    """Simulate a project in which Ray was used before: in a new one its first run fails, because
    its account is not known yet."""
    iam = cloud.gce.iam
    iam.accounts[RAY_ACCOUNT] = {"email": RAY_ACCOUNT, "projectId": PROJECT}
    iam.know(RAY_ACCOUNT)
    member = f"serviceAccount:{RAY_ACCOUNT}"
    iam.policy["bindings"] += [{"role": role, "members": [member]} for role in RAY_ROLES]


async def timed(
    name: str, launcher: Launcher, env: Mapping[str, str]
) -> tuple[float, Counter[str]]:
    """Seconds from the start of a launcher until it has returned and all nodes have joined, and the
    calls that it made."""
    async with project() as (cloud, laptop):
        if launcher is ray_up:
            create_ray_account(cloud)
        cloud.gce.boot_delay(BOOT_SECONDS)
        await wait_until_quiet(_MAX_QUIET_WAIT_SECONDS)
        started = time.monotonic()
        running = asyncio.ensure_future(launcher(cloud, laptop))
        try:
            head = await _booted_head(cloud, running)
            async with node_count(head, env) as count:
                joining = asyncio.ensure_future(count.reaches(WORKERS + 1))
                await asyncio.wait({joining, running}, return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    running.result()  # a launcher that failed has no nodes to wait for
                joined = await asyncio.wait_for(joining, TIMEOUT_SECONDS)
            await running
            done = max(joined, time.monotonic())
        finally:
            running.cancel()
        calls = Counter(cloud.ledger.calls())
    print(f"{name:<10} all nodes after {joined - started:5.1f} s, returned after "
          f"{done - started:5.1f} s", flush=True)  # fmt: skip
    return done - started, calls


async def _booted_head(cloud: SimCloud, running: asyncio.Future[Any]) -> Host:
    """The head's host, once its instance is running."""

    def heads() -> list[str]:
        if running.done():
            running.result()
        return [
            vm.name
            for vm in cloud.gce.store.vms.values()
            if vm.state == "running"
            and (vm.resource.get("labels") or {}).get("ray-node-type") == "head"
        ]

    await until(heads, "the head is running", timeout=TIMEOUT_SECONDS, every=0.2)
    return cloud.gce.host(heads()[0])


def call_problems(calls: Counter[str]) -> list[str]:
    """Where `shoal up` makes more calls than it should."""
    nodes = WORKERS + 1
    limits = {
        "compute.instances.insert": 1,
        "compute.instances.bulkInsert": 1,
        "compute.instances.getGuestAttributes": nodes,
        "compute.instances.setLabels": 2 * nodes,
    }
    return [f"{calls[c]} {c}, at most {n}" for c, n in limits.items() if calls[c] > n]


async def main() -> None:
    if reason := why_not():
        sys.exit(f"cannot run on this machine: {reason}")
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    launchers: dict[str, tuple[Launcher, Mapping[str, str]]] = {
        "by hand": (by_hand, NO_TOKEN),
        "shoal up": (shoal_up, SHOAL_TOKEN),
        "ray up": (ray_up, NO_TOKEN),
    }
    # Interleaved, so that all see the same load; other programs can only make a run slower.
    best = dict.fromkeys(launchers, TIMEOUT_SECONDS)
    problems: list[str] = []
    for _ in range(rounds):
        for name, (launcher, env) in launchers.items():
            seconds, calls = await timed(name, launcher, env)
            best[name] = min(best[name], seconds)
            if launcher is shoal_up:
                problems = call_problems(calls)
                print("  calls: " + ", ".join(f"{n} {c}" for c, n in sorted(calls.items())))
    limit, shoal, ray = best.values()
    overhead, ray_overhead = shoal - limit, ray - limit
    print(f"overhead of shoal up: {overhead:.1f} s; of ray up: {ray_overhead:.1f} s")
    for problem in problems:
        print(f"too many calls: {problem}")
    report(
        "gcp_up",
        value=shoal,
        unit="s",
        peer=ray,
        limit=limit,
        ratio=overhead / ray_overhead,
        bar=f"overhead at most {MAX_OVERHEAD_SECONDS:.0f} s and {MAX_SHARE_OF_RAY:.0%} of Ray's, "
        "one create call per node type, one host-key read and two label writes per node",
        passed=overhead <= min(MAX_OVERHEAD_SECONDS, MAX_SHARE_OF_RAY * ray_overhead)
        and not problems,
    )


if __name__ == "__main__":
    asyncio.run(main())
