"""The watch for preemptions on a simulated spot instance."""

from __future__ import annotations

import time

import pytest

from shoal.core.clock import SystemClock
from shoal.providers.gcp import preemption_watch
from shoal.providers.gcp.gcp_client import GcpClient
from shoal.providers.gcp.instances import read_instance
from tests.polling import until
from tests.simcloud.cloud import SimCloud
from tests.simcloud.test_gce import ZONE, body

pytestmark = pytest.mark.simcloud


async def test_a_notice_is_printed_once_the_instance_is_preempted(cloud: SimCloud) -> None:
    gcp = GcpClient("sim-project", SystemClock())
    spot = body("one", scheduling={"provisioningModel": "SPOT"})
    await gcp.perform("POST", f"zones/{ZONE}/instances", spot)
    record = await gcp.compute("GET", f"zones/{ZONE}/instances/one")
    instance = read_instance(record, "ubuntu")
    command = preemption_watch.command_for(instance)
    watch = await cloud.gce.host("one").popen(command)
    await until(lambda: cloud.gce.metadata.waiting == 1, "the watch waits for a change")
    before = int(time.time())
    await cloud.gce.preempt("one")
    word, when = (await watch.stdout.readline()).decode().split()
    assert word == "termination"
    assert before + 30 <= int(when) <= time.time() + 30
    assert await watch.wait() == 0


async def test_an_on_demand_instance_is_not_watched(cloud: SimCloud) -> None:
    gcp = GcpClient("sim-project", SystemClock())
    cloud.gce.boot_delay(600)
    await gcp.compute("POST", f"zones/{ZONE}/instances", body("one"))
    record = await gcp.compute("GET", f"zones/{ZONE}/instances/one")
    assert preemption_watch.command_for(read_instance(record, "ubuntu")) == ""
