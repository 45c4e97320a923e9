"""Preemptions on GCP: how soon after Google's notice the controller has drained the node, and how
soon after that it has requested a replacement.

Real Ray on spot instances of the simulated Compute Engine. The limit is the notice itself: the
agent on an instance waits for a change of its metadata and does not poll.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from tests.polling import until
from tests.providers.gcp.gcp_bed import Bed, cluster_file, node_config
from tests.providers.local.ssh_bed import USE_OUR_RAY
from tests.simcloud.cloud import SimCloud
from tests.simcloud.fixtures import why_not
from tests.simcloud.gce_store import Vm
from tests.simcloud.hosts import Host

from benchmarks.report import report
from benchmarks.spot import CONTROL, drained_at

WORKERS = 2
ROUNDS = 5
MAX_TO_DRAIN = 3.0
MAX_TO_LAUNCH = 2.0
TIMEOUT_SECONDS = 180.0
_RAY = "--disable-usage-stats --object-store-memory=100000000"


async def main() -> None:
    if reason := why_not():
        sys.exit(f"cannot run on this machine: {reason}")
    async with SimCloud(gce=True) as cloud:
        bed = Bed(cloud, await cloud.laptop())
        await _up(bed)
        rounds = [await _preempt(bed) for _ in range(ROUNDS)]
    drained, launched = (max(column) for column in zip(*rounds, strict=True))
    print(f"notice to drain: {drained:.2f} s at worst of {ROUNDS}")
    print(f"drain to launch call: {launched:.2f} s at worst of {ROUNDS}")
    report(
        "gcp_spot",
        value=drained,
        unit="s",
        peer=None,
        limit=MAX_TO_DRAIN,
        ratio=drained / MAX_TO_DRAIN,
        bar=f"drain within {MAX_TO_DRAIN:.0f} s of the preemption notice, launch call for the "
        f"replacement within {MAX_TO_LAUNCH:.0f} s of the drain",
        passed=drained <= MAX_TO_DRAIN and launched <= MAX_TO_LAUNCH,
    )


async def _up(bed: Bed) -> None:
    """Launch a head without CPUs and spot workers with one CPU each."""
    types = cluster_file()["available_node_types"]
    types["head"]["resources"] = {"CPU": 0}
    spot = node_config(scheduling={"provisioningModel": "SPOT"})
    types["worker"].update(
        node_config=spot, resources={"CPU": 1}, min_workers=WORKERS, max_workers=WORKERS
    )
    await bed.write(
        shoal={"controller": True},
        available_node_types=types,
        setup_commands=[USE_OUR_RAY],
        head_start_ray_commands=["ray stop", f"ray start --head --port=6379 {_RAY}"],
        worker_start_ray_commands=["ray stop", f"ray start --address=$RAY_HEAD_IP:6379 {_RAY}"],
    )
    await bed.up(timeout=300)


async def _preempt(bed: Bed) -> tuple[float, float]:
    """Seconds from a notice to the drain, and from the drain to the launch call."""
    head = _head_of(bed)

    def is_prepared() -> bool:
        names = {vm.name for vm in _running(bed, "worker")}
        return len(names) == WORKERS and _ready_workers(head) == names

    await until(is_prepared, "all workers are ready", timeout=TIMEOUT_SECONDS)
    notified = time.time()
    await bed.cloud.gce.preempt(_running(bed, "worker")[0].name, 60)

    def launches() -> list[float]:
        entries = bed.cloud.ledger.entries
        return [e.at for e in entries if e.call.action in _LAUNCHES and e.at > notified]

    await until(lambda: drained_at(head, notified), "it is drained", timeout=TIMEOUT_SECONDS)
    await until(launches, "a replacement is launched", timeout=TIMEOUT_SECONDS)
    drained = drained_at(head, notified)[0]
    to_drain, to_launch = drained - notified, launches()[0] - drained
    print(f"drained after {to_drain:.2f} s, replacement {to_launch:.2f} s later", flush=True)
    return to_drain, to_launch


_LAUNCHES = ("compute.instances.insert", "compute.instances.bulkInsert")


def _running(bed: Bed, role: str) -> list[Vm]:
    return [
        vm
        for vm in bed.cloud.gce.store.vms.values()
        if vm.state == "running" and vm.resource["labels"]["ray-node-type"] == role
    ]


def _head_of(bed: Bed) -> Host:
    (head,) = _running(bed, "head")
    return bed.cloud.gce.host(head.name)


def _ready_workers(head: Host) -> set[str]:
    nodes = json.loads((head.root() / CONTROL / "state.json").read_text())["nodes"]
    return {n["id"] for n in nodes if n["role"] == "worker" and n["phase"] == "ready"}


if __name__ == "__main__":
    asyncio.run(main())
