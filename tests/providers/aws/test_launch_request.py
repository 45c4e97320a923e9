"""From `node_config` to RunInstances: what passes as it stands, and what is added."""

from __future__ import annotations

import base64
import gzip
from typing import Any

import pytest

from shoal.core.errors import ConfigError
from shoal.providers.aws import launch_request, tags
from shoal.providers.aws.launch_options import LaunchOption, Subnet
from shoal.providers.aws.launch_request import LaunchResources

SUBNET = Subnet("subnet-1", "us-west-2a", "vpc-1")
GROUND = LaunchResources("shoal-key", {"vpc-1": ("sg-1",)}, "shoal-profile")
LABELS = tags.instance_tags("c", "worker", "worker", "t0", "h0")


def asked(config: dict[str, Any], offer: LaunchOption | None = None, **more: Any) -> dict[str, Any]:
    settings = {"image": "ami-1", "user_data": "#cloud-config", "count": 3, "token": "t1", **more}
    offer = offer or LaunchOption("m5.large", launch_request.market(config), SUBNET)
    return launch_request.request(config, offer, GROUND, labels=LABELS, **settings)


def tags_of(request: dict[str, Any], kind: str) -> dict[str, str]:
    (one,) = [s for s in request["TagSpecifications"] if s["ResourceType"] == kind]
    return tags.as_dict(one["Tags"])


def test_a_bare_type_gets_all_that_a_safe_machine_needs() -> None:
    request = asked({"InstanceType": "m5.large"})
    assert request["SubnetId"] == "subnet-1"
    assert request["SecurityGroupIds"] == ["sg-1"]
    assert request["KeyName"] == "shoal-key"
    assert request["IamInstanceProfile"] == {"Name": "shoal-profile"}
    assert request["MetadataOptions"]["HttpTokens"] == "required"
    assert request["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert (request["MinCount"], request["MaxCount"], request["ClientToken"]) == (1, 3, "t1")


def test_what_the_file_says_passes_as_it_stands() -> None:
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
    request = asked(config)
    for key in set(config) - {"MetadataOptions"}:
        assert request[key] == config[key]
    assert request["MetadataOptions"]["HttpTokens"] == "optional"


def test_rays_own_fields_do_not_reach_aws() -> None:
    request = asked({"SubnetIds": ["subnet-1", "subnet-2"], "MinCount": 1, "MaxCount": 1})
    assert "SubnetIds" not in request
    assert request["MaxCount"] == 3


def test_a_described_interface_takes_the_network_and_nothing_stands_twice() -> None:
    config = {"NetworkInterfaces": [{"AssociatePublicIpAddress": True}]}
    request = asked(config)
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


def test_on_demand_instead_of_spot_asks_for_no_market() -> None:
    config = {"InstanceMarketOptions": {"MarketType": "spot"}}
    request = asked(config, LaunchOption("m5.large", "on-demand", SUBNET))
    assert "InstanceMarketOptions" not in request


def test_volumes_go_with_their_machine_unless_the_file_keeps_them() -> None:
    volumes = [
        {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 140}},
        {"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 9, "DeleteOnTermination": False}},
        {"DeviceName": "/dev/sdc", "VirtualName": "ephemeral0"},
    ]
    request = asked({"BlockDeviceMappings": volumes})
    kept = [v.get("Ebs", {}).get("DeleteOnTermination") for v in request["BlockDeviceMappings"]]
    assert kept == [True, False, None]
    assert tags_of(request, "volume")[tags.KEEPS] == "yes", "so that nobody tidies it away"
    assert tags.KEEPS not in tags_of(asked({"BlockDeviceMappings": volumes[:1]}), "volume")


def test_the_files_tags_stay_and_cannot_hide_a_machine_from_us() -> None:
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
    request = asked({"TagSpecifications": own})
    labels = tags_of(request, "instance")
    assert labels["team"] == "ml"
    assert labels["Name"] == "my name"
    assert labels[tags.CLUSTER] == "c"
    assert labels["ray-cluster-name"] == "c"
    assert tags_of(request, "volume") == {tags.CLUSTER: "c"}


def test_a_launch_template_lies_under_the_file() -> None:
    template = {
        "InstanceType": "c5.large",
        "ImageId": "ami-7",
        "UserData": base64.b64encode(b"#!/bin/sh\ntrue\n").decode(),
    }
    config = {"LaunchTemplate": {"LaunchTemplateName": "x"}, "InstanceType": "m5.large"}
    merged = launch_request.with_template(config, template)
    assert merged == {
        "InstanceType": "m5.large",
        "ImageId": "ami-7",
        "UserData": "#!/bin/sh\ntrue\n",
    }


def templated(data: bytes) -> dict[str, Any]:
    """A node_config over a launch template with this launch data."""
    template = {"UserData": base64.b64encode(data).decode()}
    return launch_request.with_template({"LaunchTemplate": {"LaunchTemplateName": "x"}}, template)


def test_compressed_launch_data_of_a_template_is_read() -> None:
    assert templated(gzip.compress(b"#!/bin/sh\ntrue\n"))["UserData"] == "#!/bin/sh\ntrue\n"


CUT_OFF = gzip.compress(b"#!/bin/sh", mtime=0)[:-9]


@pytest.mark.parametrize("data", [b"\xff\xfe", CUT_OFF, b"\x1f\x8bx"], ids=["odd", "cut", "no"])
def test_launch_data_that_is_no_text_is_refused_by_the_name_of_its_template(data: bytes) -> None:
    with pytest.raises(ConfigError, match="template x is no text"):
        templated(data)


def test_asking_elsewhere_is_another_request_and_asking_again_is_the_same() -> None:
    here, there = (LaunchOption("m5.large", "spot", Subnet(id, id, "v")) for id in ("a", "b"))
    assert launch_request.client_token("t", here) == launch_request.client_token("t", here)
    assert launch_request.client_token("t", here) != launch_request.client_token("t", there)
    assert len(launch_request.client_token("t", here)) <= 64


def test_another_subnet_of_the_same_zone_is_another_request() -> None:
    one, two = (
        LaunchOption("m5.large", "spot", Subnet(id, "us-west-2a", "v")) for id in ("a", "b")
    )
    assert launch_request.client_token("t", one) != launch_request.client_token("t", two)


def test_names_are_allowed_everywhere_and_never_shared_by_two_clusters() -> None:
    assert tags.name_for("my-cluster") == "shoal-my-cluster"
    odd, odder = tags.name_for("a b/c"), tags.name_for("a b c")
    assert odd != odder
    long = tags.name_for("x" * 200)
    assert len(long) <= 64
    assert long != tags.name_for("x" * 201)
