"""Launches in the simulated Compute Engine, with its refusals and partial fills."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from shoal import spec
from shoal.core.clock import SystemClock
from shoal.core.errors import CapacityError, QuotaError
from shoal.core.events import Event, LaunchAttempted
from shoal.providers.gcp import names
from shoal.providers.gcp.gcp_client import GcpClient
from shoal.providers.gcp.instances import list_cluster, path_of, read_instance
from shoal.providers.gcp.launcher import Launcher
from shoal.providers.model import Instance, LaunchRequest, State
from shoal.providers.vm.launch_fallback import LaunchOutcome
from shoal.providers.vm.launch_options import Subnet, UnavailableOfferings
from shoal.providers.vm.launch_records import LaunchRecords
from shoal.spec.cluster_spec import ClusterSpec
from tests.simcloud.cloud import SimCloud
from tests.simcloud.google_names import lead_to

pytestmark = pytest.mark.simcloud

# As Ray's minimal example for GCP, with its default node types.
FILE = """
cluster_name: minimal
provider: {type: gcp, region: us-west1, availability_zone: us-west1-a, project_id: sim-project}
auth: {ssh_user: ubuntu}
"""
ZONES = [Subnet("default", f"us-west1-{letter}", "default") for letter in "ab"]
INSERT, BULK = "compute.instances.insert", "compute.instances.bulkInsert"


@dataclass
class Project:
    """A launcher in the project of the bed."""

    cloud: SimCloud
    directory: Path
    spec: ClusterSpec
    events: list[Event]

    def launcher(self, home: str = "home") -> Launcher:
        """The launcher of a new program with the local state in `home`."""
        clock = SystemClock()
        return Launcher(
            GcpClient("sim-project", clock),
            LaunchRecords(self.directory / home / "launches", clock),
            UnavailableOfferings(self.directory / home / "refusals.json", clock),
            self.events.append,
        )

    async def launch(self, role: str, count: int = 1, token: str = "t") -> LaunchOutcome:
        node_type = "ray_head_default" if role == "head" else "ray_worker_small"
        request = LaunchRequest(node_type, role, count, token)  # type: ignore[arg-type]
        config = self.spec.node_types[node_type].node_config
        metadata = {"ssh-keys": "ubuntu:k"}
        return await self.launcher().launch(self.spec, request, config, ZONES, metadata)

    async def instances(self) -> list[Instance]:
        gcp = self.launcher().gcp
        records = await list_cluster(gcp, self.spec.cluster_name)
        return [read_instance(record, "ubuntu") for record in records]

    def attempts(self) -> list[tuple[str, str, int]]:
        """The launch attempts: market, zone and number launched."""
        attempts = [e for e in self.events if isinstance(e, LaunchAttempted)]
        return [(e.market, e.zone, e.launched) for e in attempts]


@pytest.fixture
async def project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Project]:
    file = tmp_path / "c.yaml"
    file.write_text(FILE)
    cluster: Any = spec.load(str(file)).launchable()
    async with SimCloud(gce=True) as cloud:
        lead_to(cloud.gce, monkeypatch)
        yield Project(cloud, tmp_path, cluster, [])


async def test_a_cluster_of_any_name_is_launched_found_and_deleted(project: Project) -> None:
    project.spec = replace(project.spec, cluster_name="My_Run.1")
    await project.launch("head", token="h")
    await project.launch("worker", 2, token="w")
    calls = project.cloud.ledger.calls()
    assert (calls[INSERT], calls[BULK]) == (1, 1)
    found = {i.id: i for i in await project.instances()}
    assert sorted(i.node_type for i in found.values()) == [
        "ray_head_default",
        "ray_worker_small",
        "ray_worker_small",
    ]
    assert {(i.cluster, i.state) for i in found.values()} == {("My_Run.1", State.RUNNING)}
    assert sorted(i.market for i in found.values()) == ["on-demand", "spot", "spot"]
    assert all(id.startswith(names.cluster_prefix("My_Run.1")) for id in found)
    gcp = project.launcher().gcp
    for record in await list_cluster(gcp, "My_Run.1"):
        await gcp.perform("DELETE", path_of(record))
    await project.cloud.assert_nothing_left()


async def test_a_stockout_that_only_the_operation_reports_leads_to_the_next_zone(
    project: Project,
) -> None:
    project.cloud.faults.refuse_capacity(zone="us-west1-a")
    outcome = await project.launch("worker", 2)
    assert outcome.missing == 0
    assert project.attempts() == [("spot", "us-west1-a", 0), ("spot", "us-west1-b", 2)]


async def test_a_partial_fill_is_topped_up_in_the_next_zone(project: Project) -> None:
    project.cloud.faults.partial_launch(2)
    outcome = await project.launch("worker", 3)
    assert outcome.missing == 0
    assert project.attempts() == [("spot", "us-west1-a", 2), ("spot", "us-west1-b", 1)]
    assert len({r["name"] for r in outcome.records}) == 3


async def test_a_lack_of_spot_falls_back_to_on_demand_where_the_file_allows_it(
    project: Project,
) -> None:
    project.cloud.faults.refuse_capacity(market="spot")
    refused = await project.launch("worker", token="a")
    assert isinstance(refused.refusal, CapacityError)
    shoal = replace(project.spec.shoal, on_demand_fallback=True)
    project.spec = replace(project.spec, shoal=shoal)
    assert (await project.launch("worker", token="b")).missing == 0
    assert [i.market for i in await project.instances()] == ["on-demand"]


async def test_a_global_quota_stops_at_once(project: Project) -> None:
    project.cloud.gce.calls.launcher.quotas[None, "CPUS_ALL_REGIONS"] = 1
    outcome = await project.launch("worker", 2)
    assert isinstance(outcome.refusal, QuotaError)
    assert len(project.attempts()) == 1


async def test_a_repeated_launch_adopts_what_the_first_one_made(project: Project) -> None:
    project.cloud.faults.fail_call(BULK, when="after")
    first = await project.launch("worker", 2)
    again = await project.launch("worker", 2)
    assert {r["name"] for r in first.records} == {r["name"] for r in again.records}
    assert len(project.cloud.ledger.rentals) == 2


async def test_a_lagging_listing_does_not_launch_twice(project: Project) -> None:
    project.cloud.faults.lag_listings(60)
    assert (await project.launch("worker", 2)).missing == 0
    assert (await project.launch("head", token="h")).missing == 0
    assert len(project.cloud.ledger.rentals) == 3
