"""Firewall rules by the tag of a cluster, on hosts that a router keeps apart."""

from __future__ import annotations

import pytest

from shoal.core.clock import SystemClock
from shoal.providers.gcp import firewall, names
from shoal.providers.gcp.gcp_client import GcpClient
from tests.simcloud.cloud import SimCloud
from tests.simcloud.hosts import Host
from tests.simcloud.network import LAPTOP
from tests.simcloud.test_gce import ZONE, body

pytestmark = pytest.mark.simcloud

CLUSTER = "My_Run.1"


async def reaches(source: Host, address: str) -> bool:
    command = f"timeout 2 bash -c '</dev/tcp/{address}/22' 2>/dev/null"
    return (await source.run(command)).code == 0


async def test_rules_let_the_cluster_and_the_caller_in_and_no_other_host(cloud: SimCloud) -> None:
    gcp = GcpClient("sim-project", SystemClock())
    own = {"tags": {"items": [names.network_tag(CLUSTER)]}}
    for name, fields in (("one", own), ("two", own), ("stranger", {})):
        await gcp.perform("POST", f"zones/{ZONE}/instances", body(name, **fields))
    one, two, stranger = (cloud.gce.host(name) for name in ("one", "two", "stranger"))
    public = cloud.gce.vm("one").public or ""
    laptop = await cloud.laptop()
    assert not await reaches(laptop, public), "a network without rules lets nothing in"
    assert not await reaches(two, one.address)

    await firewall.ensure_rules(gcp, CLUSTER, "default", ["192.0.2.7/32"])
    assert await reaches(two, one.address)
    assert not await reaches(stranger, one.address)
    assert not await reaches(laptop, public), "the rule is for another caller"

    await firewall.ensure_rules(gcp, CLUSTER, "default", [f"{LAPTOP}/32"])
    assert await reaches(laptop, public)
    changes = cloud.ledger.answered()
    assert changes["compute.firewalls.insert"] == 2
    assert changes["compute.firewalls.patch"] == 1, "only what differs is changed"

    await firewall.ensure_rules(gcp, "other", "default", [f"{LAPTOP}/32"])
    deleted = await firewall.delete_rules(gcp, CLUSTER)
    assert len(deleted) == 2
    assert not await reaches(laptop, public)
    assert len(cloud.gce.store.firewalls) == 2, "those of the other cluster stay"
