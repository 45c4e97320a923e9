"""The simulated Compute Engine, seen by a client that knows only Google's host names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import requests

from tests.polling import until
from tests.simcloud.cloud import SimCloud
from tests.simcloud.gce import REFRESH_TOKEN
from tests.simcloud.google_names import lead_to

pytestmark = pytest.mark.simcloud

ZONE = "us-west1-a"
IMAGE = "projects/deeplearning-platform-release/global/images/family/common-cpu"
API = "https://compute.googleapis.com/compute/v1/projects/sim-project"


def body(name: str, **fields: Any) -> dict[str, Any]:
    """An instance as Ray's examples describe it."""
    return {
        "name": name,
        "machineType": f"zones/{ZONE}/machineTypes/n1-standard-2",
        "disks": [
            {"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": IMAGE}},
        ],
        "networkInterfaces": [{"network": "global/networks/default", "accessConfigs": [{}]}],
        **fields,
    }


def bulk(*names: str, **fields: Any) -> dict[str, Any]:
    properties = {**body("x"), "machineType": "n1-standard-2"}
    del properties["name"]
    per_instance: dict[str, Any] = {name: {} for name in names}
    return {
        "count": len(names),
        "perInstanceProperties": per_instance,
        "instanceProperties": properties,
        **fields,
    }


@dataclass
class Google:
    """The project, by plain HTTPS."""

    cloud: SimCloud
    session: requests.Session

    async def call(self, method: str, path: str, json: Any = None, **query: str) -> Any:
        """The reply to a call; Google's error with its status if it is refused."""
        reply = await asyncio.to_thread(
            self.session.request, method, f"{API}/{path}", json=json, params=query
        )
        return reply.json()

    async def finish(self, operation: dict[str, Any]) -> dict[str, Any]:
        assert "error" not in operation, operation
        scope = operation["selfLink"].partition("/sim-project/")[2]
        done: dict[str, Any] = await self.call("POST", f"{scope}/wait")
        return done

    async def names(self) -> list[str]:
        listed = await self.call("GET", f"zones/{ZONE}/instances")
        return sorted(item["name"] for item in listed.get("items", ()))


def log_in() -> requests.Session:
    session = requests.Session()
    form = {"grant_type": "refresh_token", "refresh_token": REFRESH_TOKEN}
    token = session.post("https://oauth2.googleapis.com/token", data=form).json()
    session.headers["Authorization"] = f"Bearer {token['access_token']}"
    return session


@pytest.fixture
async def google(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Google]:
    async with SimCloud(gce=True) as cloud:
        lead_to(cloud.gce, monkeypatch)
        session = await asyncio.to_thread(log_in)
        yield Google(cloud, session)
        session.close()


def reason(reply: dict[str, Any]) -> tuple[int, str]:
    return reply["error"]["code"], reply["error"]["errors"][0]["reason"]


async def test_an_instance_is_a_host_until_it_is_deleted_with_its_disk(google: Google) -> None:
    operation = await google.call("POST", f"zones/{ZONE}/instances", body("one"))
    assert operation["status"] == "RUNNING", "accepted, not done"
    assert "error" not in await google.finish(operation)
    shown = await google.call("GET", f"zones/{ZONE}/instances/one")
    assert shown["status"] == "RUNNING"
    assert shown["networkInterfaces"][0]["accessConfigs"][0]["natIP"].startswith("203.0.113.")
    assert google.cloud.gce.host("one").running

    stopped = await google.finish(await google.call("POST", f"zones/{ZONE}/instances/one/stop"))
    assert "error" not in stopped
    shown = await google.call("GET", f"zones/{ZONE}/instances/one")
    assert shown["status"] == "TERMINATED", "Google's word for stopped"

    await google.finish(await google.call("DELETE", f"zones/{ZONE}/instances/one"))
    assert reason(await google.call("GET", f"zones/{ZONE}/instances/one")) == (404, "notFound")
    await google.cloud.assert_nothing_left()
    assert not google.cloud.ledger.running()


async def test_an_accepted_launch_fails_later_for_want_of_capacity(google: Google) -> None:
    google.cloud.faults.refuse_capacity(zone=ZONE)
    done = await google.finish(await google.call("POST", f"zones/{ZONE}/instances", body("one")))
    assert done["error"]["errors"][0]["code"] == "ZONE_RESOURCE_POOL_EXHAUSTED"
    assert await google.names() == []
    await google.cloud.assert_nothing_left()


async def test_a_bulk_request_is_filled_in_part_or_rolled_back(google: Google) -> None:
    google.cloud.faults.partial_launch(1)
    request = bulk("w-0", "w-1", "w-2", minCount="1")
    path = f"zones/{ZONE}/instances/bulkInsert"
    done = await google.finish(await google.call("POST", path, request))
    (status,) = done["instancesBulkInsertOperationMetadata"]["perLocationStatus"].values()
    assert (status["createdVmCount"], status["failedToCreateVmCount"]) == (1, 2)
    assert await google.names() == ["w-2"], "not the first of the names"

    google.cloud.faults.partial_launch(1)
    rolled_back = await google.finish(await google.call("POST", path, bulk("x-0", "x-1")))
    code = rolled_back["error"]["errors"][0]["code"]
    assert code == "VM_MIN_COUNT_NOT_REACHED", "minCount is count unless it is given"
    assert await google.names() == ["w-2"]


async def test_a_repeated_request_launches_once_and_a_taken_name_conflicts(google: Google) -> None:
    path = f"zones/{ZONE}/instances"
    first = await google.call("POST", path, body("one"), requestId="r-1")
    again = await google.call("POST", path, body("one"), requestId="r-1")
    assert again["name"] == first["name"]
    conflict = await google.call("POST", path, body("one"), requestId="r-2")
    assert reason(conflict) == (409, "alreadyExists")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "My_Run.1"}, "resource.name"),
        ({"labels": {"ray-user-node-type": "ray.head.default"}}, "resource.labels"),
        ({"machineType": "n1-standard-2"}, "resource.machineType"),
        ({"machineType": f"zones/{ZONE}/machineTypes/n9"}, "does not exist in zone"),
        ({"networkInterfaces": []}, "At least one network interface"),
        ({"unknown": 1}, "Unknown name"),
        ({"scheduling": {"instanceTerminationAction": "DELETE"}}, "requires the SPOT"),
        ({"tags": {"items": ["a.b"]}}, "resource.tags.items"),
        ({"serviceAccounts": [{"email": "nobody@x"}]}, "was not found"),
    ],
)
async def test_what_google_refuses_is_refused(
    google: Google, fields: dict[str, Any], message: str
) -> None:
    refused = await google.call("POST", f"zones/{ZONE}/instances", {**body("one"), **fields})
    assert refused["error"]["code"] == 400
    assert message in refused["error"]["message"]


async def test_the_scheduling_of_rays_examples_is_accepted_as_a_list(google: Google) -> None:
    request = body("one", scheduling=[{"preemptible": True}])
    operation = await google.call("POST", f"zones/{ZONE}/instances", request)
    assert "error" not in await google.finish(operation)
    assert google.cloud.gce.vm("one").market == "spot"


async def test_labels_change_only_with_their_current_fingerprint(google: Google) -> None:
    await google.finish(await google.call("POST", f"zones/{ZONE}/instances", body("one")))
    path = f"zones/{ZONE}/instances/one"
    old = (await google.call("GET", path))["labelFingerprint"]
    change = {"labels": {"a": "b"}, "labelFingerprint": old}
    assert "error" not in await google.call("POST", f"{path}/setLabels", change)
    refused = await google.call("POST", f"{path}/setLabels", change)
    assert reason(refused) == (412, "conditionNotMet")


async def test_listings_have_pages_and_rays_filter(google: Google) -> None:
    path = f"zones/{ZONE}/instances/bulkInsert"
    request = bulk("w-0", "w-1", "w-2", minCount="1")
    request["instanceProperties"]["labels"] = {"ray-cluster-name": "c"}
    google.cloud.gce.boot_delay(600)
    await google.call("POST", path, request)
    page = await google.call("GET", f"zones/{ZONE}/instances", maxResults="2")
    rest = await google.call(
        "GET", f"zones/{ZONE}/instances", maxResults="2", pageToken=page["nextPageToken"]
    )
    assert [len(page["items"]), len(rest["items"])] == [2, 1]
    text = (
        "((status = PROVISIONING) OR (status = STAGING)) AND (labels.ray-cluster-name = c) "
        "AND (NOT labels.tpu_cores:*)"
    )
    found = await google.call("GET", f"zones/{ZONE}/instances", filter=text)
    assert len(found["items"]) == 3
    wrong = await google.call("GET", f"zones/{ZONE}/instances", filter="labels.a = ")
    assert wrong["error"]["code"] == 400
    none = await google.call("GET", f"zones/{ZONE}/instances", filter="labels.a = b")
    assert none == {}, "Google leaves an empty list out"


async def test_quotas_are_regional_or_global(google: Google) -> None:
    launcher = google.cloud.gce.calls.launcher
    launcher.quotas[None, "CPUS_ALL_REGIONS"] = 1
    done = await google.finish(await google.call("POST", f"zones/{ZONE}/instances", body("one")))
    (error,) = done["error"]["errors"]
    assert error["code"] == "QUOTA_EXCEEDED"
    assert "globally" in error["message"]
    launcher.quota_in_operation = False
    refused = await google.call("POST", f"zones/{ZONE}/instances", body("two"))
    assert reason(refused) == (403, "quotaExceeded")


async def test_a_machine_reads_its_metadata_and_hears_of_its_preemption(google: Google) -> None:
    scheduling = {"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}
    metadata = {"items": [{"key": "enable-guest-attributes", "value": "TRUE"}]}
    request = body("one", scheduling=scheduling, metadata=metadata)
    await google.finish(await google.call("POST", f"zones/{ZONE}/instances", request))
    host = google.cloud.gce.host("one")
    url = "http://metadata.google.internal/computeMetadata/v1/instance"
    bare = await host.run(f"curl -s -o /dev/null -w '%{{http_code}}' {url}/name")
    assert bare.stdout == "403"
    read = await host.run(f"curl -s -H 'Metadata-Flavor: Google' {url}/preempted")
    assert read.stdout == "FALSE"
    waiting = await host.popen(
        f"curl -s -H 'Metadata-Flavor: Google' '{url}/preempted?wait_for_change=true'"
    )
    keys = await google.call(
        "GET", f"zones/{ZONE}/instances/one/getGuestAttributes", queryPath="hostkeys/"
    )
    (key,) = keys["queryValue"]["items"]
    own = (await host.run("cat /etc/ssh/ssh_host_ed25519_key.pub")).stdout
    assert (key["key"], key["value"]) == tuple(own.split()[:2])

    metadata_server = google.cloud.gce.metadata
    await until(lambda: metadata_server.waiting == 1, "the read waits")
    await google.cloud.gce.preempt("one", 2)
    assert (await waiting.finish()).stdout == "TRUE"
    await until(lambda: not google.cloud.gce.store.vms, "the machine is deleted")
    await google.cloud.assert_nothing_left()
