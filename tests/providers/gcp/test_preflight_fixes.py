"""Every mistake is found before anything is created, and its proposed fix, applied word for word,
resolves it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.providers.fixes import preflight
from tests.providers.gcp.broken_projects import (
    COMMON,
    DEFAULT_SUBNET,
    MISTAKES,
    SERVICE_ACCOUNT,
    Scenario,
    give_account,
    restore,
)
from tests.simcloud.cloud import SimCloud
from tests.simcloud.google_names import lead_to

pytestmark = [pytest.mark.simcloud, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_cloud() -> AsyncIterator[SimCloud]:
    """One cloud for all tests, since no test launches anything."""
    async with SimCloud(gce=True) as cloud:
        yield cloud


@pytest_asyncio.fixture(loop_scope="module")
async def scenario(
    shared_cloud: SimCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scenario]:
    lead_to(shared_cloud.gce, monkeypatch)
    monkeypatch.setenv("HOME", str(tmp_path))
    endpoint = shared_cloud.ec2.client_options()["endpoint_url"]
    monkeypatch.setenv("SHOAL_CHECKIP_URL", f"{endpoint}/checkip")
    yield Scenario(tmp_path, cloud=shared_cloud)
    restore(shared_cloud)


@pytest.mark.parametrize(
    "name", [n if n in COMMON else pytest.param(n, marks=pytest.mark.long) for n in MISTAKES]
)
async def test_the_proposed_fix_resolves_the_finding(
    scenario: Scenario, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    MISTAKES[name].apply(scenario)
    (finding,) = await preflight(scenario, monkeypatch)
    assert finding.severity == "error"
    assert MISTAKES[name].message in finding.what
    scenario.apply_fix(finding.fix)
    assert await preflight(scenario, monkeypatch) == []
    assert not scenario.cloud.ledger.rentals


async def test_a_finding_names_the_line_of_the_file(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario.head["machineType"] = "n1-standrad-2"
    (finding,) = await preflight(scenario, monkeypatch)
    lines = json.dumps(scenario.file, indent=1).splitlines()
    assert "n1-standrad-2" in lines[int(finding.location.rpartition(":")[2]) - 1]
    assert finding.fix.startswith("machineType: n1-standard-")


async def test_the_deprecated_image_of_rays_example_is_only_a_warning(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = "projects/deeplearning-platform-release/global/images/common-cpu-v20240922"
    scenario.head["disks"][0]["initializeParams"]["sourceImage"] = image
    (finding,) = await preflight(scenario, monkeypatch)
    assert (finding.severity, finding.what) == (
        "warning",
        "the image common-cpu-v20240922 is deprecated",
    )
    scenario.apply_fix(finding.fix)
    assert await preflight(scenario, monkeypatch) == []


async def test_workers_without_a_way_to_the_internet_are_a_warning(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = scenario.worker["node_config"]
    config["networkInterfaces"] = [{"subnetwork": DEFAULT_SUBNET}]
    (finding,) = await preflight(scenario, monkeypatch)
    assert (finding.severity, finding.what) == ("warning", "worker cannot reach the internet")
    scenario.apply_fix(finding.fix)
    assert await preflight(scenario, monkeypatch) == []


async def test_an_unavailable_type_with_an_alternative_is_a_warning(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario.provider["availability_zone"] = "us-west1-c"
    scenario.head["machineType"] = "n2-standard-2"
    scenario.file["shoal"] = {"fallback": {"head": ["n1-standard-2"]}}
    (finding,) = await preflight(scenario, monkeypatch)
    assert finding.severity == "warning"


async def test_what_the_file_names_needs_no_permission_to_create_it(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Organisations forbid firewall rules and service accounts, and give both."""
    gce = scenario.cloud.gce
    gce.denied |= {"compute.firewalls.create", "iam.serviceAccounts.create"}
    gce.store.constraints.add("constraints/iam.disableServiceAccountCreation")
    found = {f.check for f in await preflight(scenario, monkeypatch)}
    assert found == {"permissions", "firewall", "policy"}
    give_account(scenario.cloud)
    scenario.provider["service_account"] = SERVICE_ACCOUNT
    gce.store.firewalls["ours"] = {
        "name": "ours",
        "network": "global/networks/default",
        "sourceRanges": ["0.0.0.0/0"],
        "allowed": [{"IPProtocol": "all"}],
    }
    assert await preflight(scenario, monkeypatch) == []


async def test_a_denied_lookup_is_only_a_warning(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario.provider["availability_zone"] = "us-west1-a"
    gpu = {"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": 1}
    scenario.head["guestAccelerators"] = [gpu]
    scenario.cloud.gce.denied.add("compute.acceleratorTypes.list")
    (finding,) = await preflight(scenario, monkeypatch)
    assert (finding.severity, finding.check) == ("warning", "lookup")
