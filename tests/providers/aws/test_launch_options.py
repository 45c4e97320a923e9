"""Error codes, launch options and fallback, subnets, security group rules, AMIs, user data and
policies. All pure."""

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
from shoal.providers.aws import (
    amis,
    ebs,
    error_codes,
    iam_policies,
    security_group,
    subnets,
)
from shoal.providers.aws.instance_types import InstanceTypeInfo, read_type
from shoal.providers.aws.preflight import checks
from shoal.providers.model import LaunchRequest
from shoal.providers.vm import host_keys
from shoal.providers.vm.launch_fallback import launch_with_fallback
from shoal.providers.vm.launch_options import (
    LaunchOption,
    Subnet,
    UnavailableOfferings,
    launch_options,
)
from shoal.providers.vm.launch_records import LaunchRecords
from tests.providers.aws.manual_clock import ManualClock

A, B = (Subnet(f"subnet-{z}", f"us-west-2{z}", "vpc-1") for z in "ab")


@pytest.mark.parametrize(
    ("code", "error_class"),
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
def test_every_error_code_has_a_class(code: str, error_class: type[ShoalError]) -> None:
    error = error_codes.error_for(code, "No.", "RunInstances")
    assert type(error) is error_class
    assert code in error.why


def test_a_missing_spot_service_role_is_reported_with_a_fix() -> None:
    code = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
    error = error_codes.error_for(
        code, "The provided credentials do not have permission", "RunInstances"
    )
    assert error.fix.startswith("aws iam create-service-linked-role")
    statements = {s["Sid"]: s for s in iam_policies.caller_policy()["Statement"]}
    allowed = statements["CreateSpotServiceLinkedRole"]
    assert allowed["Condition"]["StringEquals"] == {"iam:AWSServiceName": "spot.amazonaws.com"}


def test_a_head_may_launch_with_every_resource_that_node_config_may_name() -> None:
    statements = {s["Sid"]: s for s in iam_policies.head_policy("mine", "us-west-2")["Statement"]}
    resources = statements["UseResourcesForLaunch"]["Resource"]
    assert "arn:aws:ec2:us-west-2:*:placement-group/*" in resources
    assert "arn:aws:ec2:us-west-2::snapshot/*" in resources


def test_options_vary_zones_first_then_types_then_markets() -> None:
    options = launch_options(["m5.large", "m5a.large"], "spot", [A, B], on_demand_fallback=True)
    assert [(o.instance_type, o.market, o.subnet.zone[-1]) for o in options] == [
        ("m5.large", "spot", "a"),
        ("m5.large", "spot", "b"),
        ("m5a.large", "spot", "a"),
        ("m5a.large", "spot", "b"),
        ("m5.large", "on-demand", "a"),
        ("m5.large", "on-demand", "b"),
        ("m5a.large", "on-demand", "a"),
        ("m5a.large", "on-demand", "b"),
    ]


def test_on_demand_is_an_option_only_if_the_file_allows_it() -> None:
    options = launch_options(["m5.large"], "spot", [A], on_demand_fallback=False)
    assert {option.market for option in options} == {"spot"}


def test_unavailable_offerings_are_remembered_across_programs_for_some_minutes(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    first, second = launch_options(["m5.large"], "spot", [A, B], on_demand_fallback=False)
    UnavailableOfferings(tmp_path / "r.json", clock).record(first)
    later = UnavailableOfferings(tmp_path / "r.json", clock)
    assert later.deprioritise([first, second]) == [second, first]
    clock.advance(600)
    assert later.deprioritise([first, second]) == [first, second]


async def test_missing_instances_are_launched_from_the_next_options(tmp_path: Path) -> None:
    capacity = {"a": 2, "b": 1}
    events: list[Any] = []

    async def run_instances(option: LaunchOption, count: int) -> list[dict[str, Any]]:
        launched = min(count, capacity[option.subnet.zone[-1]])
        capacity[option.subnet.zone[-1]] -= launched
        if not launched:
            raise CapacityError("no", why="none left")
        return [{"InstanceId": f"i-{option.subnet.zone}-{n}"} for n in range(launched)]

    options = launch_options(
        ["m5.large", "m5a.large"], "on-demand", [A, B], on_demand_fallback=False
    )
    outcome = await launch_with_fallback(
        LaunchRequest("w", "worker", 4, "t"),
        options,
        run_instances,
        UnavailableOfferings(tmp_path / "r", ManualClock()),
        events.append,
    )
    assert (len(outcome.records), outcome.missing) == (3, 1)
    assert [(e.instance_type, e.zone[-1], e.launched) for e in events] == [
        ("m5.large", "a", 2),
        ("m5.large", "b", 1),
        ("m5a.large", "a", 0),
        ("m5a.large", "b", 0),
    ]
    assert events[-1].error == "none left"


async def test_a_quota_error_skips_the_other_zones(tmp_path: Path) -> None:
    attempts: list[str] = []

    async def run_instances(option: LaunchOption, count: int) -> list[dict[str, Any]]:
        attempts.append(str(option))
        if option.instance_type == "p3.2xlarge":
            raise QuotaError("no", why="limit")
        return [{"InstanceId": "i-1"}]

    options = launch_options(
        ["p3.2xlarge", "m5.large"], "on-demand", [A, B], on_demand_fallback=False
    )
    unavailable = UnavailableOfferings(tmp_path / "r", ManualClock())
    outcome = await launch_with_fallback(
        LaunchRequest("w", "worker", 1, "t"),
        options,
        run_instances,
        unavailable,
        lambda event: None,
    )
    assert not outcome.missing
    assert attempts == ["p3.2xlarge on-demand in us-west-2a", "m5.large on-demand in us-west-2a"]


def record(id: str, zone: str, *, vpc: str = "vpc-1", public: bool = True) -> dict[str, Any]:
    return {
        "SubnetId": id,
        "AvailabilityZone": zone,
        "VpcId": vpc,
        "MapPublicIpOnLaunch": public,
        "DefaultForAz": vpc == "vpc-1",
    }


def test_subnets_are_of_one_vpc_in_the_order_of_the_files_zones() -> None:
    records = [
        record("s1", "a"),
        record("s2", "b"),
        record("s3", "c"),
        record("s4", "b", vpc="vpc-2"),
    ]
    chosen = subnets.choose_subnets(records, ids=(), zones=("c", "b"), public=True)
    assert [s.id for s in chosen] == ["s3", "s2"]


def test_subnets_that_the_file_names_are_used_in_its_order() -> None:
    records = [record("s1", "a", public=False), record("s2", "b")]
    chosen = subnets.choose_subnets(records, ids=("s2", "s1"), zones=(), public=True)
    assert [s.id for s in chosen] == ["s2", "s1"]


@pytest.mark.parametrize(
    ("records", "zones", "fix"),
    [
        ([], (), "create-default-vpc"),
        ([record("s1", "a")], ("z",), "availability_zone"),
        ([record("s1", "a", public=False)], (), "use_internal_ips"),
    ],
)
def test_no_usable_subnet_is_an_error_with_a_fix(
    records: list[dict[str, Any]], zones: tuple[str, ...], fix: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        subnets.choose_subnets(records, ids=(), zones=zones, public=True)
    assert fix in caught.value.fix


def test_ssh_is_allowed_from_the_caller_only() -> None:
    inside, ssh = security_group.rules(["sg-1"], (), ["198.51.100.7/32"])
    assert inside["UserIdGroupPairs"] == [{"GroupId": "sg-1"}]
    assert (ssh["FromPort"], ssh["ToPort"]) == (22, 22)
    assert [r["CidrIp"] for r in ssh["IpRanges"]] == ["198.51.100.7/32"]


def test_an_ssh_rule_of_the_file_replaces_the_callers() -> None:
    own = {
        "IpProtocol": "tcp",
        "FromPort": 22,
        "ToPort": 22,
        "IpRanges": [{"CidrIp": "10.0.0.0/8"}],
    }
    assert security_group.rules(["sg-1"], [own], ["198.51.100.7/32"])[1:] == [own]
    other = {**own, "FromPort": 8265, "ToPort": 8265}
    assert len(security_group.rules(["sg-1"], [other], ["198.51.100.7/32"])) == 3


def test_the_resources_of_an_instance_type_are_read_from_ec2() -> None:
    info = read_type(
        {
            "InstanceType": "p3.8xlarge",
            "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
            "VCpuInfo": {"DefaultVCpus": 32},
            "MemoryInfo": {"SizeInMiB": 1000},
            "GpuInfo": {"Gpus": [{"Name": "V100", "Manufacturer": "NVIDIA", "Count": 4}]},
        }
    )
    assert info.architecture == "x86_64"
    assert info.resources["CPU"] == 32
    assert info.resources["GPU"] == 4
    assert info.resources["accelerator_type:V100"] == 1
    assert 0 < info.resources["memory"] < 1000 * 2**20


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
def test_a_volume_is_priced_by_its_type(volume: dict[str, Any], dollars: float) -> None:
    assert ebs.monthly_cost(volume) == pytest.approx(dollars)


def test_the_default_ami_depends_on_architecture_gpu_and_container() -> None:
    plain, arm = InstanceTypeInfo("m5.large", "x86_64"), InstanceTypeInfo("m6g.large", "arm64")
    gpu = InstanceTypeInfo("g4dn.xlarge", "x86_64", {"GPU": 1.0})
    assert "ubuntu" in str(amis.ssm_parameter(None, plain))
    assert "amd64" in str(amis.ssm_parameter(None, plain))
    assert "arm64" in str(amis.ssm_parameter(None, arm))
    assert "nvidia" in str(amis.ssm_parameter(None, gpu))
    assert "nvidia" in str(amis.ssm_parameter("latest_dlami", plain))
    assert "nvidia" in str(amis.ssm_parameter(None, plain, in_container=True))
    assert amis.ssm_parameter("ami-1", gpu) is None


@pytest.mark.parametrize("name", ["p3.2xlarge", "p3dn.24xlarge", "g3s.xlarge", "p2.xlarge"])
def test_old_gpus_get_the_ami_with_the_proprietary_driver(name: str) -> None:
    info = InstanceTypeInfo(name, "x86_64", {"CPU": 8, "GPU": 1})
    for image in (None, "latest_dlami"):
        assert "base-proprietary-nvidia-driver" in str(amis.ssm_parameter(image, info))


def test_user_data_of_the_file_is_kept_next_to_the_host_key() -> None:
    key = host_keys.OneTimeKey("PRIVATE\n", "ssh-ed25519 AAAA shoal-one-time")
    own = "#!/bin/sh\necho 'grüße'\n"
    message = email.message_from_string(host_keys.user_data(key, own))
    parts = [part for part in message.walk() if not part.is_multipart()]
    config, script = (cast(bytes, part.get_payload(decode=True)).decode() for part in parts)
    assert script == own
    assert config.startswith("#cloud-config\n")
    assert host_keys.user_data(key, "").startswith("#cloud-config\n")


def test_multipart_user_data_of_the_file_keeps_its_parts() -> None:
    """As Terraform writes it."""
    key = host_keys.OneTimeKey("PRIVATE\n", "ssh-ed25519 PUBLIC shoal-one-time")
    own = (
        'Content-Type: multipart/mixed; boundary="MIMEBOUNDARY"\nMIME-Version: 1.0\n\n'
        "--MIMEBOUNDARY\nContent-Type: text/x-shellscript\n\n#!/bin/sh\ntrue\n"
        "--MIMEBOUNDARY\nContent-Type: text/cloud-config\n\npackages: [git]\n--MIMEBOUNDARY--\n"
    )
    message = email.message_from_string(host_keys.user_data(key, own, "#!/bin/sh\nwatchdog\n"))
    parts = [part for part in message.walk() if not part.is_multipart()]
    subtypes = ["cloud-config", "x-shellscript", "cloud-config", "x-shellscript"]
    assert [part.get_content_subtype() for part in parts] == subtypes
    assert "packages: [git]" in str(parts[2].get_payload())


def test_a_listing_is_complete_when_it_shows_recent_launches(tmp_path: Path) -> None:
    clock = ManualClock()
    records = LaunchRecords(tmp_path, clock)
    assert records.is_complete(set(), set())
    records.record_intent("t", "key")
    assert not records.is_complete(set(), set())
    assert records.is_complete({"i-1"}, {"t"})
    records.record_instances("t", ["i-1", "i-2"])
    assert not records.is_complete({"i-1"}, {"t"})
    assert records.is_complete({"i-1", "i-2"}, {"t"})
    clock.advance(3600)
    assert records.is_complete(set(), set())


def test_policies_use_the_names_of_the_regions_partition() -> None:
    for region, name, service in [
        ("us-west-2", "aws", "ec2.amazonaws.com"),
        ("us-gov-west-1", "aws-us-gov", "ec2.amazonaws.com"),
        ("cn-north-1", "aws-cn", "ec2.amazonaws.com.cn"),
    ]:
        trust = json.loads(iam_policies.to_json(iam_policies.EC2_TRUST_POLICY, region))
        assert trust["Statement"][0]["Principal"] == {"Service": service}
        buckets = iam_policies.bucket_policy({"b": False}, [iam_policies.role_arn("w")])
        for document in (iam_policies.head_policy("mine", region), buckets):
            policy = json.loads(iam_policies.to_json(document, region))
            arns = [arn for s in policy["Statement"] for arn in s["Resource"] if arn != "*"]
            assert {arn.split(":")[1] for arn in arns} == {name}
    printed = CliRunner().invoke(main, ["iam-policy", "--region", "cn-north-1"])
    assert "arn:aws:" not in printed.output
    assert "arn:aws-cn:ec2" in printed.output


def test_a_persistent_spot_request_of_a_launch_template_is_refused() -> None:
    """Preflight reports those of the file itself."""
    spot = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}}
    checks.refuse_persistent_spot({"a": {}, "b": {"InstanceMarketOptions": spot}})
    spot["SpotOptions"] = {"SpotInstanceType": "persistent"}
    with pytest.raises(ConfigError, match="node type b: persistent"):
        checks.refuse_persistent_spot({"a": {}, "b": {"InstanceMarketOptions": spot}})


def test_a_head_may_terminate_instances_of_its_own_cluster_only() -> None:
    statements = {s["Sid"]: s for s in iam_policies.head_policy("mine", "us-west-2")["Statement"]}
    terminate = statements["StartStopTerminateInstances"]
    assert terminate["Condition"]["StringLike"] == {"aws:ResourceTag/shoal-cluster": "mine"}
    launch = statements["LaunchTaggedInstances"]
    assert launch["Condition"]["StringLike"] == {"aws:RequestTag/shoal-cluster": "mine"}
    assert "iam:" not in json.dumps(iam_policies.head_policy("mine", "us-west-2"))


@pytest.mark.parametrize(
    "options",
    [[], ["--head", "--cluster-name", "mine"], ["--boundary"], ["--with-boundary", "a" * 200]],
)
def test_the_printed_policy_is_valid_for_iam(options: list[str]) -> None:
    done = CliRunner().invoke(main, ["iam-policy", *options])
    assert done.exit_code == 0
    document = json.loads(done.stdout)
    assert document["Version"] == "2012-10-17"
    names = [statement["Sid"] for statement in document["Statement"]]
    assert len(names) == len(set(names))
    assert all(name.isalnum() for name in names)
    assert len("".join(done.stdout.split())) <= 6144, "IAM accepts no longer policy"
