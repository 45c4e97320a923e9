"""From `node_config` to RunInstances: what is passed unchanged, and what is added."""

from __future__ import annotations

import base64
import gzip
import os
from typing import Any

import pytest

from shoal.core.errors import ConfigError
from shoal.providers.aws import launch_request, tags, user_data
from shoal.providers.aws.launch_request import LaunchResources
from shoal.providers.vm.launch_options import LaunchOption, Subnet

SUBNET = Subnet("subnet-1", "us-west-2a", "vpc-1")
RESOURCES = LaunchResources("shoal-key", {"vpc-1": ("sg-1",)}, "shoal-profile")
LABELS = tags.instance_tags("c", "worker", "worker", "t0", "h0")


def build(
    config: dict[str, Any], option: LaunchOption | None = None, **more: Any
) -> dict[str, Any]:
    settings = {"image": "ami-1", "user_data": "#cloud-config", "count": 3, "token": "t1", **more}
    option = option or LaunchOption("m5.large", launch_request.market(config), SUBNET)
    return launch_request.build_request(config, option, RESOURCES, labels=LABELS, **settings)


def tags_of(request: dict[str, Any], resource_type: str) -> dict[str, str]:
    (entry,) = [s for s in request["TagSpecifications"] if s["ResourceType"] == resource_type]
    return tags.as_dict(entry["Tags"])


def test_a_bare_instance_type_gets_secure_defaults() -> None:
    request = build({"InstanceType": "m5.large"})
    assert request["SubnetId"] == "subnet-1"
    assert request["SecurityGroupIds"] == ["sg-1"]
    assert request["KeyName"] == "shoal-key"
    assert request["IamInstanceProfile"] == {"Name": "shoal-profile"}
    assert request["MetadataOptions"]["HttpTokens"] == "required"
    assert request["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert (request["MinCount"], request["MaxCount"], request["ClientToken"]) == (1, 3, "t1")


def test_fields_of_the_file_are_passed_unchanged() -> None:
    config = {
        "InstanceType": "m5.large",
        "KeyName": "mine",
        "IamInstanceProfile": {"Arn": "arn:aws:iam::1:instance-profile/x"},
        "SecurityGroupIds": ["sg-9"],
        "EbsOptimized": True,
        "InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.1"}},
        "MetadataOptions": {"HttpTokens": "optional"},
        "InstanceInitiatedShutdownBehavior": "stop",
    }
    request = build(config)
    for key in set(config) - {"MetadataOptions"}:
        assert request[key] == config[key]
    assert request["MetadataOptions"]["HttpTokens"] == "optional"


def test_capacity_blocks_and_reservations_are_passed_unchanged() -> None:
    config = {
        "InstanceType": "p5.48xlarge",
        "InstanceMarketOptions": {"MarketType": "capacity-block"},
        "CapacityReservationSpecification": {
            "CapacityReservationTarget": {"CapacityReservationId": "cr-1"}
        },
    }
    request = build(config)
    for key, value in config.items():
        assert request[key] == value or key == "InstanceType"


def test_spot_options_are_dropped_only_in_the_fallback_to_on_demand() -> None:
    config = {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.1"}}}
    on_demand = LaunchOption("m5.large", "on-demand", SUBNET)
    assert "InstanceMarketOptions" in build(config)
    assert "InstanceMarketOptions" not in build(config, on_demand)


def test_the_default_root_volume_is_added_to_those_of_the_file() -> None:
    data = {"DeviceName": "/dev/sdf", "Ebs": {"VolumeSize": 10}}
    root = {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 100, "VolumeType": "gp3"}}
    request = build({"BlockDeviceMappings": [data]}, root_volume=root)
    assert [m["DeviceName"] for m in request["BlockDeviceMappings"]] == ["/dev/sdf", "/dev/xvda"]
    assert all(m["Ebs"]["DeleteOnTermination"] for m in request["BlockDeviceMappings"])


def test_fields_that_ray_added_are_not_passed_to_ec2() -> None:
    request = build({"SubnetIds": ["subnet-1", "subnet-2"], "MinCount": 1, "MaxCount": 1})
    assert "SubnetIds" not in request
    assert request["MaxCount"] == 3


def test_network_settings_go_to_a_configured_interface_and_only_there() -> None:
    config = {"NetworkInterfaces": [{"AssociatePublicIpAddress": True}]}
    request = build(config)
    assert "SubnetId" not in request
    assert "SecurityGroupIds" not in request
    (interface,) = request["NetworkInterfaces"]
    assert interface == {
        "AssociatePublicIpAddress": True,
        "DeviceIndex": 0,
        "SubnetId": "subnet-1",
        "Groups": ["sg-1"],
    }
    assert config == {"NetworkInterfaces": [{"AssociatePublicIpAddress": True}]}


def test_an_on_demand_option_removes_the_market_options() -> None:
    config = {"InstanceMarketOptions": {"MarketType": "spot"}}
    request = build(config, LaunchOption("m5.large", "on-demand", SUBNET))
    assert "InstanceMarketOptions" not in request


def test_volumes_are_deleted_on_termination_unless_the_file_keeps_them() -> None:
    volumes = [
        {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 140}},
        {"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 9, "DeleteOnTermination": False}},
        {"DeviceName": "/dev/sdc", "VirtualName": "ephemeral0"},
    ]
    request = build({"BlockDeviceMappings": volumes})
    deleted = [v.get("Ebs", {}).get("DeleteOnTermination") for v in request["BlockDeviceMappings"]]
    assert deleted == [True, False, None]
    assert tags_of(request, "volume")[tags.RETAINED] == "yes", "gc must not delete it"
    assert tags.RETAINED not in tags_of(build({"BlockDeviceMappings": volumes[:1]}), "volume")


def test_tags_of_the_file_are_kept_but_cannot_override_the_cluster_tag() -> None:
    own = [
        {
            "ResourceType": "instance",
            "Tags": [
                {"Key": "team", "Value": "ml"},
                {"Key": "Name", "Value": "my name"},
                {"Key": tags.CLUSTER, "Value": "another"},
            ],
        }
    ]
    request = build({"TagSpecifications": own})
    labels = tags_of(request, "instance")
    assert labels["team"] == "ml"
    assert labels["Name"] == "my name"
    assert labels[tags.CLUSTER] == "c"
    assert labels["ray-cluster-name"] == "c"
    assert tags_of(request, "volume") == {tags.CLUSTER: "c"}


def test_the_file_overrides_its_launch_template() -> None:
    template = {
        "InstanceType": "c5.large",
        "ImageId": "ami-7",
        "UserData": base64.b64encode(b"#!/bin/sh\ntrue\n").decode(),
    }
    config = {"LaunchTemplate": {"LaunchTemplateName": "x"}, "InstanceType": "m5.large"}
    merged = launch_request.merge_template(config, template)
    assert merged == {
        "InstanceType": "m5.large",
        "ImageId": "ami-7",
        "UserData": "#!/bin/sh\ntrue\n",
    }


def templated(data: bytes) -> dict[str, Any]:
    """A node_config merged with a launch template that has this user data."""
    template = {"UserData": base64.b64encode(data).decode()}
    return launch_request.merge_template({"LaunchTemplate": {"LaunchTemplateName": "x"}}, template)


def test_compressed_user_data_of_a_template_is_read() -> None:
    assert templated(gzip.compress(b"#!/bin/sh\ntrue\n"))["UserData"] == "#!/bin/sh\ntrue\n"


CUT_OFF = gzip.compress(b"#!/bin/sh", mtime=0)[:-9]


@pytest.mark.parametrize("data", [b"\xff\xfe", CUT_OFF, b"\x1f\x8bx"], ids=["odd", "cut", "no"])
def test_binary_user_data_of_a_template_is_an_error_that_names_the_template(data: bytes) -> None:
    with pytest.raises(ConfigError, match="template x is not text"):
        templated(data)


def test_the_client_token_is_stable_for_an_option_and_differs_between_options() -> None:
    first, second = (LaunchOption("m5.large", "spot", Subnet(id, id, "v")) for id in ("a", "b"))
    assert launch_request.client_token("t", first) == launch_request.client_token("t", first)
    assert launch_request.client_token("t", first) != launch_request.client_token("t", second)
    assert len(launch_request.client_token("t", first)) <= 64


def test_the_client_token_differs_between_subnets_of_one_zone() -> None:
    first, second = (
        LaunchOption("m5.large", "spot", Subnet(id, "us-west-2a", "v")) for id in ("a", "b")
    )
    assert launch_request.client_token("t", first) != launch_request.client_token("t", second)


def test_resource_names_are_valid_and_unique_per_cluster() -> None:
    assert tags.resource_name("my-cluster") == "shoal-my-cluster"
    first, second = tags.resource_name("a b/c"), tags.resource_name("a b c")
    assert first != second
    long = tags.resource_name("x" * 200)
    assert len(long) <= 64
    assert long != tags.resource_name("x" * 201)


def test_user_data_over_16_kb_is_compressed_in_the_same_way_every_time() -> None:
    assert user_data.encode("#!/bin/sh\n") == "#!/bin/sh\n"
    long = "#!/bin/sh\n" + "echo hello\n" * 5000
    encoded = user_data.encode(long)
    assert isinstance(encoded, bytes)
    assert encoded == user_data.encode(long)
    assert gzip.decompress(encoded).decode() == long


def test_user_data_that_does_not_fit_compressed_is_refused() -> None:
    random = base64.b64encode(os.urandom(30_000)).decode()
    with pytest.raises(ConfigError) as caught:
        user_data.encode(random)
    assert "EC2 accepts 16 KB" in caught.value.why
    with pytest.raises(ConfigError):
        user_data.check(random)


def test_the_files_own_tags_are_on_instances_and_volumes_and_cannot_replace_shoals() -> None:
    request = build({}, own_tags={"team": "vision", "shoal-cluster": "another"})
    for resource_type in ("instance", "volume"):
        labels = tags_of(request, resource_type)
        assert (labels["team"], labels["shoal-cluster"]) == ("vision", "c")


def test_placement_groups_and_efa_interfaces_reach_run_instances() -> None:
    efa = {"DeviceIndex": 0, "InterfaceType": "efa", "NetworkCardIndex": 0}
    second = {
        "DeviceIndex": 1, "InterfaceType": "efa", "NetworkCardIndex": 1, "SubnetId": "subnet-1",
        "Groups": ["sg-1"],
    }  # fmt: skip
    placement = {"GroupName": "fast", "PartitionNumber": 2}
    request = build({"Placement": placement, "NetworkInterfaces": [efa, second]})
    assert request["Placement"] == placement
    assert request["NetworkInterfaces"] == [
        {**efa, "SubnetId": "subnet-1", "Groups": ["sg-1"]},
        second,
    ]
    assert "SubnetId" not in request and "SecurityGroupIds" not in request
