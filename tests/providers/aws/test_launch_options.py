"""What AWS's answers mean, where machines are asked for, and who may talk to them. All pure."""

from __future__ import annotations

import email
import json
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from shoal.cli import main
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
from shoal.providers.aws import amis, ebs, error_codes, host_keys, iam_policies, network
from shoal.providers.aws.instance_types import MachineType, read_type
from shoal.providers.aws.launch_fallback import launch_with_fallback
from shoal.providers.aws.launch_options import (
    LaunchOption,
    Subnet,
    UnavailableOfferings,
    launch_options,
)
from shoal.providers.aws.launch_records import Journal
from shoal.providers.aws.preflight import persistent_spot
from shoal.providers.model import LaunchRequest
from tests.providers.aws.manual_clock import StillClock

A, B = (Subnet(f"subnet-{z}", f"us-west-2{z}", "vpc-1") for z in "ab")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("InsufficientInstanceCapacity", CapacityError),
        ("Unsupported", CapacityError),
        ("VcpuLimitExceeded", QuotaError),
        ("MaxSpotInstanceCountExceeded", QuotaError),
        ("UnauthorizedOperation", DeniedError),
        ("ExpiredToken", AuthError),
        ("AuthFailure", AuthError),
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", DeniedError),
        ("VcpuLimitExceeded.Spot", QuotaError),
        ("RequestLimitExceeded", TransientError),
        ("InternalError", TransientError),
        ("InvalidAMIID.NotFound", ConfigError),
        ("DependencyViolation", ProviderError),
    ],
)
def test_every_refusal_has_a_class(code: str, kind: type[ShoalError]) -> None:
    error = error_codes.refusal(code, "No.", "RunInstances")
    assert type(error) is kind
    assert code in error.why


def test_the_first_spot_machine_of_an_account_is_refused_with_what_to_do() -> None:
    code = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
    error = error_codes.refusal(
        code, "The provided credentials do not have permission", "RunInstances"
    )
    assert error.fix.startswith("aws iam create-service-linked-role")
    allowed = {s["Sid"]: s for s in iam_policies.for_caller()["Statement"]}["FirstSpotMachine"]
    assert allowed["Condition"]["StringEquals"] == {"iam:AWSServiceName": "spot.amazonaws.com"}


def test_a_head_may_use_all_that_a_launch_may_name() -> None:
    statements = {s["Sid"]: s for s in iam_policies.for_head("mine", "us-west-2")["Statement"]}
    used = statements["LaunchWith"]["Resource"]
    assert "arn:aws:ec2:us-west-2:*:placement-group/*" in used
    assert "arn:aws:ec2:us-west-2::snapshot/*" in used


def test_zones_come_before_types_and_types_before_the_dearer_market() -> None:
    found = launch_options(["m5.large", "m5a.large"], "spot", [A, B], on_demand_too=True)
    assert [(o.instance_type, o.market, o.subnet.zone[-1]) for o in found] == [
        ("m5.large", "spot", "a"),
        ("m5.large", "spot", "b"),
        ("m5a.large", "spot", "a"),
        ("m5a.large", "spot", "b"),
        ("m5.large", "on-demand", "a"),
        ("m5.large", "on-demand", "b"),
        ("m5a.large", "on-demand", "a"),
        ("m5a.large", "on-demand", "b"),
    ]


def test_full_price_is_paid_only_where_it_is_allowed() -> None:
    found = launch_options(["m5.large"], "spot", [A], on_demand_too=False)
    assert {offer.market for offer in found} == {"spot"}


def test_a_refusal_is_remembered_for_some_minutes_also_by_the_next_program(tmp_path: Path) -> None:
    clock = StillClock()
    first, second = launch_options(["m5.large"], "spot", [A, B], on_demand_too=False)
    UnavailableOfferings(tmp_path / "r.json", clock).note(first)
    later = UnavailableOfferings(tmp_path / "r.json", clock)
    assert later.last([first, second]) == [second, first]
    clock.advance(600)
    assert later.last([first, second]) == [first, second]


async def test_machines_are_topped_up_elsewhere_until_there_are_enough(tmp_path: Path) -> None:
    given = {"a": 2, "b": 1}
    told: list[Any] = []

    async def ask(offer: LaunchOption, count: int) -> list[dict[str, Any]]:
        left = min(count, given[offer.subnet.zone[-1]])
        given[offer.subnet.zone[-1]] -= left
        if not left:
            raise CapacityError("no", why="none left")
        return [{"InstanceId": f"i-{offer.subnet.zone}-{n}"} for n in range(left)]

    found = launch_options(["m5.large", "m5a.large"], "on-demand", [A, B], on_demand_too=False)
    result = await launch_with_fallback(
        LaunchRequest("w", "worker", 4, "t"),
        found,
        ask,
        UnavailableOfferings(tmp_path / "r", StillClock()),
        told.append,
    )
    assert (len(result.records), result.missing) == (3, 1)
    assert [(e.instance_type, e.zone[-1], e.launched) for e in told] == [
        ("m5.large", "a", 2),
        ("m5.large", "b", 1),
        ("m5a.large", "a", 0),
        ("m5a.large", "b", 0),
    ]
    assert told[-1].error == "none left"


async def test_a_quota_is_not_asked_again_in_another_zone(tmp_path: Path) -> None:
    asked: list[str] = []

    async def ask(offer: LaunchOption, count: int) -> list[dict[str, Any]]:
        asked.append(str(offer))
        if offer.instance_type == "p3.2xlarge":
            raise QuotaError("no", why="limit")
        return [{"InstanceId": "i-1"}]

    found = launch_options(["p3.2xlarge", "m5.large"], "on-demand", [A, B], on_demand_too=False)
    refusals = UnavailableOfferings(tmp_path / "r", StillClock())
    result = await launch_with_fallback(
        LaunchRequest("w", "worker", 1, "t"), found, ask, refusals, lambda event: None
    )
    assert not result.missing
    assert asked == ["p3.2xlarge on-demand in us-west-2a", "m5.large on-demand in us-west-2a"]


def record(id: str, zone: str, *, vpc: str = "vpc-1", public: bool = True) -> dict[str, Any]:
    return {
        "SubnetId": id,
        "AvailabilityZone": zone,
        "VpcId": vpc,
        "MapPublicIpOnLaunch": public,
        "DefaultForAz": vpc == "vpc-1",
    }


def test_subnets_are_of_one_network_in_the_order_of_the_files_zones() -> None:
    known = [
        record("s1", "a"),
        record("s2", "b"),
        record("s3", "c"),
        record("s4", "b", vpc="vpc-2"),
    ]
    chosen = network.choose_subnets(known, named=(), zones=("c", "b"), public=True)
    assert [s.id for s in chosen] == ["s3", "s2"]


def test_subnets_that_the_file_names_are_taken_in_its_order() -> None:
    known = [record("s1", "a", public=False), record("s2", "b")]
    chosen = network.choose_subnets(known, named=("s2", "s1"), zones=("z",), public=True)
    assert [s.id for s in chosen] == ["s2", "s1"]


@pytest.mark.parametrize(
    ("known", "zones", "words"),
    [
        ([], (), "create-default-vpc"),
        ([record("s1", "a")], ("z",), "availability_zone"),
        ([record("s1", "a", public=False)], (), "use_internal_ips"),
    ],
)
def test_no_usable_subnet_says_what_to_do(
    known: list[dict[str, Any]], zones: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        network.choose_subnets(known, named=(), zones=zones, public=True)
    assert words in caught.value.fix


def test_ssh_is_open_to_the_caller_and_not_to_the_world() -> None:
    inside, ssh = network.rules("sg-1", (), ["198.51.100.7/32"])
    assert inside["UserIdGroupPairs"] == [{"GroupId": "sg-1"}]
    assert (ssh["FromPort"], ssh["ToPort"]) == (22, 22)
    assert [r["CidrIp"] for r in ssh["IpRanges"]] == ["198.51.100.7/32"]


def test_a_file_that_says_who_may_log_in_decides_alone() -> None:
    own = {
        "IpProtocol": "tcp",
        "FromPort": 22,
        "ToPort": 22,
        "IpRanges": [{"CidrIp": "10.0.0.0/8"}],
    }
    assert network.rules("sg-1", [own], ["198.51.100.7/32"])[1:] == [own]
    other = {**own, "FromPort": 8265, "ToPort": 8265}
    assert len(network.rules("sg-1", [other], ["198.51.100.7/32"])) == 3


def test_a_types_resources_are_what_aws_says_it_has() -> None:
    machine = read_type(
        {
            "InstanceType": "p3.8xlarge",
            "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
            "VCpuInfo": {"DefaultVCpus": 32},
            "MemoryInfo": {"SizeInMiB": 1000},
            "GpuInfo": {"Gpus": [{"Name": "V100", "Manufacturer": "NVIDIA", "Count": 4}]},
        }
    )
    assert machine.architecture == "x86_64"
    assert machine.resources["CPU"] == 32
    assert machine.resources["GPU"] == 4
    assert machine.resources["accelerator_type:V100"] == 1
    assert 0 < machine.resources["memory"] < 1000 * 2**20


@pytest.mark.parametrize(
    ("volume", "dollars"),
    [
        ({"VolumeType": "gp3", "Size": 100, "Iops": 3000, "Throughput": 125}, 8.0),
        ({"VolumeType": "gp3", "Size": 100, "Iops": 4000, "Throughput": 225}, 17.0),
        ({"VolumeType": "gp2", "Size": 100, "Iops": 300}, 10.0),
        ({"VolumeType": "io2", "Size": 100, "Iops": 1000}, 77.5),
        ({"VolumeType": "sc1", "Size": 1000}, 15.0),
    ],
)
def test_a_volume_costs_what_its_kind_does(volume: dict[str, Any], dollars: float) -> None:
    assert ebs.per_month(volume) == pytest.approx(dollars)


def test_the_default_image_follows_processor_graphics_and_container() -> None:
    plain, arm = MachineType("m5.large", "x86_64"), MachineType("m6g.large", "arm64")
    gpu = MachineType("g4dn.xlarge", "x86_64", {"GPU": 1.0})
    assert "ubuntu" in str(amis.parameter_for(None, plain))
    assert "amd64" in str(amis.parameter_for(None, plain))
    assert "arm64" in str(amis.parameter_for(None, arm))
    assert "nvidia" in str(amis.parameter_for(None, gpu))
    assert "nvidia" in str(amis.parameter_for("latest_dlami", plain))
    assert "nvidia" in str(amis.parameter_for(None, plain, in_container=True))
    assert amis.parameter_for("ami-1", gpu) is None


def test_launch_data_of_the_users_own_stays_whole_beside_the_host_key() -> None:
    key = host_keys.OneTimeKey("PRIVATE\n", "ssh-ed25519 AAAA shoal-one-time")
    own = "#!/bin/sh\necho 'grüße'\n"
    message = email.message_from_string(host_keys.user_data(key, own))
    parts = [part for part in message.walk() if not part.is_multipart()]
    config, script = (cast(bytes, part.get_payload(decode=True)).decode() for part in parts)
    assert script == own
    assert config.startswith("#cloud-config\n")
    assert host_keys.user_data(key, "").startswith("#cloud-config\n")


def test_launch_data_that_has_parts_itself_keeps_them() -> None:
    """As Terraform writes it."""
    key = host_keys.OneTimeKey("PRIVATE\n", "ssh-ed25519 PUBLIC shoal-one-time")
    own = (
        'Content-Type: multipart/mixed; boundary="MIMEBOUNDARY"\nMIME-Version: 1.0\n\n'
        "--MIMEBOUNDARY\nContent-Type: text/x-shellscript\n\n#!/bin/sh\ntrue\n"
        "--MIMEBOUNDARY\nContent-Type: text/cloud-config\n\npackages: [git]\n--MIMEBOUNDARY--\n"
    )
    message = email.message_from_string(host_keys.user_data(key, own, "#!/bin/sh\nguard\n"))
    leaves = [part for part in message.walk() if not part.is_multipart()]
    kinds = ["cloud-config", "x-shellscript", "cloud-config", "x-shellscript"]
    assert [leaf.get_content_subtype() for leaf in leaves] == kinds
    assert "packages: [git]" in str(leaves[2].get_payload())


def test_a_listing_is_complete_when_it_shows_what_was_launched_lately(tmp_path: Path) -> None:
    clock = StillClock()
    journal = Journal(tmp_path, clock)
    assert journal.is_complete(set(), set())
    journal.intend("t", "key")
    assert not journal.is_complete(set(), set())
    assert journal.is_complete({"i-1"}, {"t"})
    journal.answered("t", ["i-1", "i-2"])
    assert not journal.is_complete({"i-1"}, {"t"})
    assert journal.is_complete({"i-1", "i-2"}, {"t"})
    clock.advance(3600)
    assert journal.is_complete(set(), set())


def test_policies_name_things_as_their_part_of_aws_does() -> None:
    for region, name, service in [
        ("us-west-2", "aws", "ec2.amazonaws.com"),
        ("us-gov-west-1", "aws-us-gov", "ec2.amazonaws.com"),
        ("cn-north-1", "aws-cn", "ec2.amazonaws.com.cn"),
    ]:
        trust = json.loads(iam_policies.text(iam_policies.TRUST, region))
        assert trust["Statement"][0]["Principal"] == {"Service": service}
        buckets = iam_policies.for_buckets({"b": False}, [iam_policies.role_arn("w")])
        for document in (iam_policies.for_head("mine", region), buckets):
            told = json.loads(iam_policies.text(document, region))
            named = [arn for s in told["Statement"] for arn in s["Resource"] if arn != "*"]
            assert {arn.split(":")[1] for arn in named} == {name}
    printed = CliRunner().invoke(main, ["iam-policy", "--region", "cn-north-1"])
    assert "arn:aws:" not in printed.output
    assert "arn:aws-cn:ec2" in printed.output


def test_a_launch_template_cannot_ask_for_a_persistent_spot_request() -> None:
    """Of what the file itself says, the doctor tells."""
    spot = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}}
    persistent_spot.refuse({"a": {}, "b": {"InstanceMarketOptions": spot}})
    spot["SpotOptions"] = {"SpotInstanceType": "persistent"}
    with pytest.raises(ConfigError, match="node type b: persistent"):
        persistent_spot.refuse({"a": {}, "b": {"InstanceMarketOptions": spot}})


def test_a_head_may_end_machines_of_its_own_cluster_only() -> None:
    statements = {s["Sid"]: s for s in iam_policies.for_head("mine", "us-west-2")["Statement"]}
    ending = statements["End"]
    assert ending["Condition"]["StringLike"] == {"aws:ResourceTag/shoal-cluster": "mine"}
    launching = statements["Launch"]
    assert launching["Condition"]["StringLike"] == {"aws:RequestTag/shoal-cluster": "mine"}
    assert "iam:" not in json.dumps(iam_policies.for_head("mine", "us-west-2"))


@pytest.mark.parametrize("options", [[], ["--head", "--cluster-name", "mine"]])
def test_what_is_printed_is_a_policy_that_iam_reads(options: list[str]) -> None:
    done = CliRunner().invoke(main, ["iam-policy", *options])
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert document["Version"] == "2012-10-17"
    names = [statement["Sid"] for statement in document["Statement"]]
    assert len(names) == len(set(names))
    assert all(name.isalnum() for name in names)
