"""The client against the simulated Compute Engine, under Google's host names."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import (
    AuthError,
    CapacityError,
    ConfigError,
    DeniedError,
    ProviderError,
    QuotaError,
    ShoalError,
    TransientError,
)
from shoal.providers.gcp.error_codes import error_for, is_global_quota, operation_error
from shoal.providers.gcp.gcp_client import GcpClient
from tests.simcloud.cloud import SimCloud
from tests.simcloud.test_gce import ZONE, body, bulk

INSTANCES = f"zones/{ZONE}/instances"


def client(project: str = "sim-project") -> GcpClient:
    return GcpClient(project, SystemClock())


@pytest.mark.simcloud
async def test_an_operation_is_awaited_and_its_error_is_raised(cloud: SimCloud) -> None:
    google = client()
    await google.perform("POST", INSTANCES, body("one"))
    assert cloud.gce.host("one").running
    cloud.faults.refuse_capacity(zone=ZONE)
    with pytest.raises(CapacityError, match="does not have enough resources"):
        await google.perform("POST", INSTANCES, body("two"))
    cloud.faults.lift_all()
    cloud.gce.calls.launcher.quotas[None, "CPUS_ALL_REGIONS"] = 2
    with pytest.raises(QuotaError) as caught:
        await google.perform("POST", INSTANCES, body("two"))
    assert is_global_quota(caught.value)
    await google.perform("DELETE", f"{INSTANCES}/one")
    await cloud.assert_nothing_left()


@pytest.mark.simcloud
async def test_a_listing_has_all_pages(cloud: SimCloud) -> None:
    cloud.gce.boot_delay(600)
    google = client()
    await google.compute("POST", f"{INSTANCES}/bulkInsert", bulk("w-0", "w-1", "w-2"))
    listed = await google.items(INSTANCES, {"maxResults": "1"})
    assert sorted(item["name"] for item in listed) == ["w-0", "w-1", "w-2"]
    assert cloud.ledger.calls()["compute.instances.list"] == 3


@pytest.mark.simcloud
async def test_throttled_calls_and_lost_replies_are_repeated(cloud: SimCloud) -> None:
    cloud.faults.throttle("compute.zones.list", times=2)
    google = client()
    assert len(await google.items("zones")) == 7
    cloud.faults.fail_call("compute.instances.insert", when="after")
    done = await google.perform("POST", INSTANCES, body("one"), query={"requestId": "r-1"})
    assert "error" not in done
    assert cloud.ledger.calls()["compute.instances.insert"] == 2
    assert len(cloud.ledger.rentals) == 1


@pytest.mark.simcloud
async def test_a_refused_login_says_how_to_log_in(cloud: SimCloud) -> None:
    cloud.faults.revoke_credentials("laptop")
    with pytest.raises(AuthError) as caught:
        await client().compute("GET", "")
    assert "expired or revoked" in caught.value.what
    assert caught.value.fix.splitlines()[-1] == "gcloud auth application-default login"


@pytest.mark.simcloud
async def test_refusals_have_classes_and_fixes(cloud: SimCloud) -> None:
    cloud.gce.denied.add("compute.instances.create")
    with pytest.raises(DeniedError, match=r"compute\.instances\.create"):
        await client().compute("POST", INSTANCES, body("one"))
    cloud.gce.denied.clear()
    with pytest.raises(ProviderError, match="Failed to find project other"):
        await client("other").compute("GET", "")
    with pytest.raises(ConfigError, match="Unknown name"):
        await client().compute("POST", f"{INSTANCES}/bulkInsert", _with_unknown_field())
    cloud.gce.disabled_apis.add("compute")
    with pytest.raises(AuthError) as caught:
        await client().compute("GET", "")
    assert caught.value.fix == "gcloud services enable compute.googleapis.com --project sim-project"


@pytest.mark.simcloud
async def test_calls_to_other_services_count_against_the_project(cloud: SimCloud) -> None:
    """Google refuses those of a user who has logged in, as long as they name no project."""
    cloud.gce.needs_quota_project = True
    google = client()
    assert (await google.call("cloudresourcemanager", "GET", ""))["projectId"] == "sim-project"
    cloud.gce.disabled_apis.add("iam")
    with pytest.raises(AuthError) as caught:
        await google.call("iam", "GET", "/serviceAccounts")
    assert caught.value.fix == "gcloud services enable iam.googleapis.com --project sim-project"


def _with_unknown_field() -> dict[str, object]:
    request = bulk("w-0")
    request["instanceProperties"]["unknown"] = 1
    return request


async def test_without_credentials_the_error_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(AuthError, match="no Google credentials"):
        await client().compute("GET", "")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", CapacityError),
        ("QUOTA_EXCEEDED", QuotaError),
        ("RESOURCE_OPERATION_RATE_EXCEEDED", TransientError),
        ("PERMISSIONS_ERROR", DeniedError),
        ("SOMETHING_NEW", ProviderError),
    ],
)
def test_errors_of_operations_have_classes(code: str, expected: type[ShoalError]) -> None:
    failed = {"error": {"errors": [{"code": code, "message": "no"}]}, "httpErrorStatusCode": 400}
    assert type(operation_error(failed)) is expected
    assert operation_error({"status": "DONE"}) is None


def test_an_unknown_error_of_the_server_is_transient() -> None:
    assert isinstance(error_for("", "Bad Gateway", "compute", 502), TransientError)
