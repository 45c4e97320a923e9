"""Names, labels and request bodies for Compute Engine."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import ConfigError
from shoal.providers.gcp import launch_request, names
from shoal.providers.vm.launch_options import LaunchOption, Market, Subnet

NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL = re.compile(r"[a-z0-9_-]{0,63}")
DISK: dict[str, Any] = {
    "boot": True,
    "initializeParams": {"sourceImage": "projects/p/global/images/i"},
}
CLUSTER_NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", fullmatch=True)


def option(market: Market = "on-demand") -> LaunchOption:
    return LaunchOption("n1-standard-2", market, Subnet("default", "us-west1-a", "default"))


def properties(config: dict[str, Any], market: Market = "on-demand", **values: Any) -> Any:
    labels = names.instance_tags("My_Run.1", "ray.worker.default", "worker", "token", "hash")
    metadata = {"ssh-keys": "ubuntu:ssh-ed25519 AAAA", "enable-oslogin": "FALSE"}
    return launch_request.properties(
        config, option(market), cluster="My_Run.1", tags=labels, metadata=metadata, **values
    )


@given(CLUSTER_NAMES, st.text(max_size=80))
def test_every_name_becomes_one_that_google_accepts(cluster: str, node_type: str) -> None:
    assert NAME.fullmatch(names.cluster_prefix(cluster))
    for name in names.instance_names(cluster, "t", "worker", 2, start=9998):
        assert NAME.fullmatch(name)
        assert name.startswith(f"{names.cluster_prefix(cluster)}-")
    assert LABEL.fullmatch(names.label_value(node_type))


@given(CLUSTER_NAMES, CLUSTER_NAMES)
def test_clusters_with_different_names_never_meet(one: str, other: str) -> None:
    if one != other:
        assert names.cluster_prefix(one) != names.cluster_prefix(other)
        assert names.label_value(one) != names.label_value(other)


def test_a_repeated_launch_has_the_same_names_and_request_id() -> None:
    first = names.instance_names("c", "token", "worker", 3)
    assert first == names.instance_names("c", "token", "worker", 3)
    assert not set(first) & set(names.instance_names("c", "other", "worker", 3))
    assert names.request_id("t", "a") == names.request_id("t", "a")
    assert names.request_id("t", "a") != names.request_id("t", "b")


def test_the_real_names_are_read_back_from_the_metadata() -> None:
    request = properties({"disks": [DISK]})
    values = names.metadata_values(request["metadata"]["items"])
    real = json.loads(values[names.METADATA_TAGS])
    tags = names.read_tags(request["labels"], real)
    assert tags["shoal-cluster"] == "My_Run.1"
    assert tags["ray-user-node-type"] == "ray.worker.default"
    assert tags["ray-node-type"] == "worker"


def test_a_label_that_was_changed_later_is_not_hidden_by_the_metadata() -> None:
    real = {"ray-node-status": "Waiting.For.Ssh"}
    assert names.read_tags({"ray-node-status": "up-to-date"}, real)["ray-node-status"] == (
        "up-to-date"
    )


def test_rays_preemptible_list_becomes_a_spot_instance_that_is_deleted() -> None:
    config = {"disks": [DISK], "scheduling": [{"preemptible": True}, {"onHostMaintenance": "x"}]}
    assert launch_request.market(config) == "spot"
    assert properties(config, "spot")["scheduling"] == {
        "onHostMaintenance": "x",
        "provisioningModel": "SPOT",
        "automaticRestart": False,
        "instanceTerminationAction": "DELETE",
    }
    assert properties(config, "on-demand")["scheduling"] == {"onHostMaintenance": "x"}


def test_a_scheduling_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ConfigError, match="scheduling"):
        launch_request.scheduling({"scheduling": ["SPOT"]})


def test_what_the_file_says_is_kept() -> None:
    interface = {"subnetwork": "regions/us-west1/subnetworks/own"}
    config: dict[str, Any] = {
        "disks": [{**DISK, "autoDelete": False}],
        "networkInterfaces": [interface],
        "labels": {"team": "a"},
        "tags": {"items": ["web"]},
        "metadata": {"items": [{"key": "ssh-keys", "value": "me:ssh-ed25519 BBBB"}]},
        "serviceAccounts": [{"email": "own@x"}],
        "minCpuPlatform": "Intel Haswell",
    }
    request = properties(config, service_account="shoal@x")
    assert request["disks"][0]["autoDelete"] is False
    assert request["networkInterfaces"] == [interface]
    assert request["labels"]["team"] == "a"
    assert request["tags"]["items"] == ["web", names.network_tag("My_Run.1")]
    keys = names.metadata_values(request["metadata"]["items"])["ssh-keys"]
    assert keys.splitlines() == ["me:ssh-ed25519 BBBB", "ubuntu:ssh-ed25519 AAAA"]
    assert request["serviceAccounts"] == [{"email": "own@x"}]
    assert request["minCpuPlatform"] == "Intel Haswell"
    assert "labels" not in config["disks"][0]["initializeParams"], "the spec is not changed"


def test_insert_has_urls_where_bulk_insert_has_names() -> None:
    accelerators = [{"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": 1}]
    common = properties({"disks": [DISK], "guestAccelerators": accelerators})
    bulk = launch_request.bulk_request(common, ["a-0", "a-1"])
    assert (bulk["count"], bulk["minCount"]) == ("2", "1")
    assert bulk["instanceProperties"]["machineType"] == "n1-standard-2"
    single = launch_request.insert_request(common, "a-0", "us-west1-a")
    assert single["machineType"] == "zones/us-west1-a/machineTypes/n1-standard-2"
    assert single["guestAccelerators"][0]["acceleratorType"] == (
        "zones/us-west1-a/acceleratorTypes/nvidia-tesla-t4"
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"disks": [DISK]}, False),
        ({"disks": [DISK, {"source": "zones/z/disks/d"}]}, True),
        ({"disks": [DISK, {"source": "zones/z/disks/d", "mode": "READ_ONLY"}]}, False),
        ({"sourceMachineImage": "global/machineImages/m"}, True),
    ],
)
def test_machine_images_and_existing_disks_need_single_inserts(
    config: dict[str, Any], expected: bool
) -> None:
    assert launch_request.needs_single_insert(config) is expected
