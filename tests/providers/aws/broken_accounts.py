"""Mistakes in cluster files and accounts, one at a time, and a follower of the fixes that preflight
proposes, word for word."""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import boto3

from shoal.providers.aws import iam_policies
from tests.providers.aws import aws_cli
from tests.providers.aws.aws_bed import SHOAL, Bed, cluster_file
from tests.providers.fixes import FixableFile
from tests.simcloud.calls import ApiError
from tests.simcloud.cloud import SimCloud
from tests.simcloud.console import Result
from tests.simcloud.ec2 import ACCESS_KEY, REGION
from tests.simcloud.faults import Fault
from tests.simcloud.keys import new_key

PUBLIC_KEY = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ"
STANDARD, STANDARD_SPOT = "L-1216C47A", "L-34B43A08"


@dataclass
class Scenario(FixableFile):
    """A cluster file with one head, and an account."""

    cloud: SimCloud = field(kw_only=True)

    def __post_init__(self) -> None:
        self.file = {**copy.deepcopy(cluster_file()), "max_workers": 4}
        self.worker.update(min_workers=0, max_workers=4)

    def client(self, service: str = "ec2") -> Any:
        return boto3.client(service, **self.cloud.ec2.client_options())

    def subnets(self) -> list[str]:
        return [subnet["SubnetId"] for subnet in self.client().describe_subnets()["Subnets"]]

    def images(self) -> list[dict[str, Any]]:
        images: list[dict[str, Any]] = self.client().describe_images()["Images"]
        return images

    def add_profile(self, profile: str) -> None:
        """Add a profile with valid credentials."""
        secret = self.cloud.ec2.client_options()["aws_secret_access_key"]
        text = f"[{profile}]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {secret}\n"
        self.home[".aws/credentials"] = text

    def run_command(self, command: str) -> None:
        if command == "shoal iam-policy > shoal-policy.json":
            policy = json.dumps(iam_policies.caller_policy())
            (self.directory / "shoal-policy.json").write_text(policy)
        else:
            aws_cli.run(command, self.client, self.directory)


@dataclass(frozen=True)
class Mistake:
    """A part of the finding that preflight reports, and how to make the mistake."""

    message: str
    apply: Callable[[Scenario], None]


def _no_credentials(scenario: Scenario) -> None:
    scenario.add_profile("work")
    unset = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    scenario.environment.update(unset, AWS_EC2_METADATA_DISABLED="true")


def _another_profile(scenario: Scenario) -> None:
    _no_credentials(scenario)
    scenario.environment["AWS_PROFILE"] = "nobody"


def _expired(scenario: Scenario) -> None:
    scenario.add_profile("fresh")
    scenario.environment["AWS_ACCESS_KEY_ID"] = "AKIAWASGOODYESTERDAY"


def _region(scenario: Scenario) -> None:
    scenario.file["provider"]["region"] = "us-wst-2"


def _permission(scenario: Scenario) -> None:
    iam = scenario.client("iam")
    name = scenario.client("sts").get_caller_identity()["Arn"].rpartition("/")[2]
    iam.create_user(UserName=name)
    denied = ApiError("UnauthorizedOperation", "You are not authorized to perform this operation.")
    calls = scenario.cloud.ledger.calls

    def strikes(call: Any, _: Any) -> bool:
        return call.action == "ImportKeyPair" and not calls()["AttachUserPolicy"]

    scenario.cloud.faults.add(Fault(strikes, denied))


def _zone(scenario: Scenario) -> None:
    scenario.file["provider"]["availability_zone"] = f"{REGION}z"


def _private_subnets(scenario: Scenario) -> None:
    for subnet in scenario.subnets():
        scenario.client().modify_subnet_attribute(
            SubnetId=subnet, MapPublicIpOnLaunch={"Value": False}
        )


def _no_subnets(scenario: Scenario) -> None:
    client = scenario.client()
    for subnet in scenario.subnets():
        client.delete_subnet(SubnetId=subnet)
    for vpc in client.describe_vpcs()["Vpcs"]:
        client.delete_vpc(VpcId=vpc["VpcId"])


def _named_subnet(scenario: Scenario) -> None:
    scenario.head["SubnetIds"] = ["subnet-none"]


def _type(scenario: Scenario) -> None:
    scenario.head["InstanceType"] = "m5.lrage"


def _type_elsewhere(scenario: Scenario) -> None:
    scenario.head["InstanceType"] = "trn1n.32xlarge"
    scenario.file["provider"]["availability_zone"] = f"{REGION}a"


def _persistent(scenario: Scenario) -> None:
    options = {"SpotInstanceType": "persistent", "InstanceInterruptionBehavior": "stop"}
    market = {"MarketType": "spot", "SpotOptions": options}
    scenario.worker["node_config"]["InstanceMarketOptions"] = market


def _image(scenario: Scenario) -> None:
    scenario.head["ImageId"] = "ami-none"


def _architecture(scenario: Scenario) -> None:
    ubuntu = "/aws/service/canonical/ubuntu/server/22.04/stable/current/arm64/hvm/ebs-gp2/ami-id"
    parameter = scenario.client("ssm").get_parameter(Name=ubuntu)["Parameter"]
    scenario.head["ImageId"] = parameter["Value"]


def _small_root(scenario: Scenario) -> None:
    """AWS would refuse this launch."""
    scenario.head["ImageId"] = scenario.client().register_image(Name="big")["ImageId"]
    scenario.head["BlockDeviceMappings"] = [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 8}}]


def _no_key_pair(scenario: Scenario) -> None:
    scenario.head["KeyName"] = "nobody"


def _key_pair_without_private_key(scenario: Scenario) -> None:
    scenario.client().import_key_pair(KeyName="theirs", PublicKeyMaterial=PUBLIC_KEY)
    scenario.head["KeyName"] = "theirs"
    mine = new_key("mine")  # a different key
    scenario.file["auth"].setdefault("ssh_private_key", "~/.ssh/mine")
    scenario.home.update({".ssh/mine": mine.private, ".ssh/mine.pub": mine.public})


def _no_group(scenario: Scenario) -> None:
    scenario.head["SecurityGroupIds"] = ["sg-none"]


def _closed_group(scenario: Scenario) -> None:
    (vpc,) = scenario.client().describe_vpcs()["Vpcs"]
    group = scenario.client().create_security_group(
        GroupName="web", Description="web", VpcId=vpc["VpcId"]
    )
    scenario.head["SecurityGroupIds"] = [group["GroupId"]]


def _closed_rules(scenario: Scenario) -> None:
    web = {"IpProtocol": "tcp", "FromPort": 20, "ToPort": 30}
    rule = {**web, "IpRanges": [{"CidrIp": "192.0.2.0/24"}]}
    scenario.file["provider"]["security_group"] = {"IpPermissions": [rule]}


def _closed_ranges(scenario: Scenario) -> None:
    scenario.file["shoal"] = {**scenario.file["shoal"], "ssh_from": ["192.0.2.0/24"]}


def _quota(scenario: Scenario) -> None:
    scenario.cloud.ec2.market.quotas[STANDARD] = 4
    scenario.worker["min_workers"] = 3


def _spot_quota(scenario: Scenario) -> None:
    scenario.cloud.ec2.market.quotas[STANDARD_SPOT] = 1
    scenario.head["InstanceMarketOptions"] = {"MarketType": "spot"}


def _mount(scenario: Scenario) -> None:
    scenario.file["file_mounts"] = {"/data": "./nowhere"}


def _private_key(scenario: Scenario) -> None:
    scenario.file["auth"]["ssh_private_key"] = "~/.ssh/nowhere.pem"


MISTAKES = {
    "no credentials": Mistake("no usable AWS credentials", _no_credentials),
    "another profile": Mistake("no usable AWS credentials", _another_profile),
    "expired": Mistake("AWS refused", _expired),
    "region": Mistake("there is no region us-wst-2", _region),
    "permission": Mistake("you may not call ImportKeyPair", _permission),
    "zone": Mistake("there is no subnet in us-west-2z", _zone),
    "private subnets": Mistake("no subnet assigns public addresses", _private_subnets),
    "no subnets": Mistake("the region has no subnet", _no_subnets),
    "named subnet": Mistake("there is no subnet subnet-none", _named_subnet),
    "type": Mistake("there is no instance type m5.lrage", _type),
    "type elsewhere": Mistake("trn1n.32xlarge is not offered in us-west-2a", _type_elsewhere),
    "persistent": Mistake("persistent spot requests relaunch terminated instances", _persistent),
    "image": Mistake("there is no AMI ami-none", _image),
    "architecture": Mistake("is for arm64, but m5.large is x86_64", _architecture),
    "small root": Mistake("the root volume of 8 GiB is smaller than", _small_root),
    "no key pair": Mistake("there is no key pair nobody", _no_key_pair),
    "key pair without private key": Mistake(
        "the private key of key pair theirs", _key_pair_without_private_key
    ),
    "no group": Mistake("there is no security group sg-none", _no_group),
    "closed group": Mistake("allows SSH from", _closed_group),
    "closed rules": Mistake("provider.security_group does not allow SSH", _closed_rules),
    "closed ranges": Mistake("shoal.ssh_from does not allow SSH", _closed_ranges),
    "quota": Mistake("needs 8 vCPUs of on-demand standard instances", _quota),
    "spot quota": Mistake("needs 2 vCPUs of spot standard instances", _spot_quota),
    "mount": Mistake("nowhere does not exist", _mount),
    "private key": Mistake("nowhere.pem does not exist", _private_key),
}

# The mistakes in the reports of users that led to this project.
USER_REPORTED = ("private subnets", "no credentials", "small root")


def apply_twelve(scenario: Scenario) -> list[str]:
    """Make twelve mistakes in one file and account; returns a part of each expected finding."""
    names = [
        "mount", "private key", "zone", "quota", "type", "image", "small root", "no key pair",
        "key pair without private key", "no group", "closed group", "permission",
    ]  # fmt: skip
    node_types = scenario.file["available_node_types"]
    valid = copy.deepcopy(scenario.head)
    for name in names:
        MISTAKES[name].apply(scenario)
        if scenario.head != valid:  # a node type each, so that no mistake hides another
            node_types[name] = {"node_config": scenario.head, "min_workers": 1, "resources": {}}
            node_types["head"]["node_config"] = copy.deepcopy(valid)
    scenario.file["max_workers"] = 20
    messages = {name: MISTAKES[name].message for name in names}
    messages["quota"] = "vCPUs of on-demand standard instances"
    return list(messages.values())


async def run_on_laptop(bed: Bed, scenario: Scenario, command: str) -> Result:
    """Run a command on the laptop, with the scenario's file, home and environment."""
    for name, text in {**scenario.home, "c.yaml": json.dumps(scenario.file, indent=1)}.items():
        path = shlex.quote(name)
        write = f'umask 077; mkdir -p "$(dirname {path})" && cat > {path}'
        (await bed.laptop.run(write, stdin=text)).require(name)
    unset = "".join(f"-u {n} " for n, value in scenario.environment.items() if value is None)
    assigned = {n: value for n, value in scenario.environment.items() if value is not None}
    variables = " ".join(f"{n}={shlex.quote(value)}" for n, value in assigned.items())
    return await bed.laptop.run(f"env {unset}{variables} {SHOAL} {command}", timeout=120)
