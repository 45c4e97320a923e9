"""One mistake each, in a cluster file or in an account, and doing what the doctor says about it,
word for word."""

from __future__ import annotations

import copy
import functools
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import yaml

from shoal.providers.aws import iam_policies
from tests.providers.aws import aws_cli
from tests.providers.aws.aws_bed import SHOAL, Bed, cluster_file
from tests.simcloud.calls import ApiError
from tests.simcloud.cloud import SimCloud
from tests.simcloud.console import Result
from tests.simcloud.ec2 import ACCESS_KEY, REGION
from tests.simcloud.faults import Fault
from tests.simcloud.keys import new_key

PUBLIC_KEY = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ"
STANDARD, STANDARD_SPOT = "L-1216C47A", "L-34B43A08"


@dataclass
class Patient:
    """A cluster file of one head, an account, and what is in a person's home and environment. A
    variable that is None is not set."""

    cloud: SimCloud
    directory: Path
    file: dict[str, Any] = field(default_factory=dict)
    home: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.file = {**copy.deepcopy(cluster_file()), "max_workers": 4}
        self.worker.update(min_workers=0, max_workers=4)

    @property
    def head(self) -> dict[str, Any]:
        config: dict[str, Any] = self.file["available_node_types"]["head"]["node_config"]
        return config

    @property
    def worker(self) -> dict[str, Any]:
        kind: dict[str, Any] = self.file["available_node_types"]["worker"]
        return kind

    def client(self, service: str = "ec2") -> Any:
        return boto3.client(service, **self.cloud.ec2.client_options())

    def subnets(self) -> list[str]:
        return [one["SubnetId"] for one in self.client().describe_subnets()["Subnets"]]

    def images(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client().describe_images()["Images"]
        return found

    def credentials(self, profile: str) -> None:
        """Have a profile that works."""
        secret = self.cloud.ec2.client_options()["aws_secret_access_key"]
        text = f"[{profile}]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {secret}\n"
        self.home[".aws/credentials"] = text

    def follow(self, fix: str) -> None:
        """Do what a fix says: all of its steps, and of each the first way that it names."""
        for step in fix.splitlines():
            self._do(step.partition(", or ")[0])

    def _do(self, step: str) -> None:
        if taken := re.match(r"take (\S+) out", step):
            _each_with(self.file, taken[1], lambda holder: holder.pop(taken[1]))
        elif added := re.match(r"add to (\w+): (.*)", step):
            rule = yaml.safe_load(added[2])
            _each_with(self.file, added[1], lambda holder: holder[added[1]].append(rule))
        elif step.startswith("export "):
            name, _, value = step.removeprefix("export ").partition("=")
            self.environment[name] = value
        elif step.startswith("unset "):
            self.environment.update(dict.fromkeys(step.split()[1:]))
        elif step == "shoal iam-policy > shoal-policy.json":
            (self.directory / "shoal-policy.json").write_text(json.dumps(iam_policies.for_caller()))
        elif step.startswith("aws "):
            aws_cli.run(step, self.client, self.directory)
        else:
            self._write(yaml.safe_load(step))

    def _write(self, lines: dict[str, Any]) -> None:
        """Put lines into the file: sections where they belong, all else where it stands, or into
        every node's configuration."""
        for key, value in lines.items():
            if key in ("auth", "docker", "provider", "shoal"):
                self.file[key] = {**self.file.get(key, {}), **value}
            elif not _each_with(self.file, key, functools.partial(_set, key=key, value=value)):
                self.head[key] = value


def _set(holder: dict[str, Any], key: str, value: Any) -> None:
    holder[key] = value


def _each_with(data: Any, key: str, change: Callable[[Any], object]) -> int:
    """Change everything in the file that has a key; how many that were."""
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    found = sum(_each_with(one, key, change) for one in list(inner))
    if isinstance(data, dict) and key in data:
        change(data)
        found += 1
    return found


@dataclass(frozen=True)
class Ailment:
    """What the doctor says of it, in part, and how one gets it."""

    says: str
    breaks: Callable[[Patient], None]


def _no_credentials(patient: Patient) -> None:
    patient.credentials("work")
    unset = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    patient.environment.update(unset, AWS_EC2_METADATA_DISABLED="true")


def _another_profile(patient: Patient) -> None:
    _no_credentials(patient)
    patient.environment["AWS_PROFILE"] = "nobody"


def _expired(patient: Patient) -> None:
    patient.credentials("fresh")
    patient.environment["AWS_ACCESS_KEY_ID"] = "AKIAWASGOODYESTERDAY"


def _region(patient: Patient) -> None:
    patient.file["provider"]["region"] = "us-wst-2"


def _permission(patient: Patient) -> None:
    iam = patient.client("iam")
    name = patient.client("sts").get_caller_identity()["Arn"].rpartition("/")[2]
    iam.create_user(UserName=name)
    denied = ApiError("UnauthorizedOperation", "You are not authorized to perform this operation.")
    calls = patient.cloud.ledger.calls

    def strikes(call: Any, _: Any) -> bool:
        return call.action == "ImportKeyPair" and not calls()["PutUserPolicy"]

    patient.cloud.faults.add(Fault(strikes, denied))


def _zone(patient: Patient) -> None:
    patient.file["provider"]["availability_zone"] = f"{REGION}z"


def _private_subnets(patient: Patient) -> None:
    for subnet in patient.subnets():
        patient.client().modify_subnet_attribute(
            SubnetId=subnet, MapPublicIpOnLaunch={"Value": False}
        )


def _no_subnets(patient: Patient) -> None:
    client = patient.client()
    for subnet in patient.subnets():
        client.delete_subnet(SubnetId=subnet)
    for vpc in client.describe_vpcs()["Vpcs"]:
        client.delete_vpc(VpcId=vpc["VpcId"])


def _named_subnet(patient: Patient) -> None:
    patient.head["SubnetIds"] = ["subnet-none"]


def _type(patient: Patient) -> None:
    patient.head["InstanceType"] = "m5.lrage"


def _type_elsewhere(patient: Patient) -> None:
    patient.head["InstanceType"] = "trn1n.32xlarge"
    patient.file["provider"]["availability_zone"] = f"{REGION}a"


def _persistent(patient: Patient) -> None:
    options = {"SpotInstanceType": "persistent", "InstanceInterruptionBehavior": "stop"}
    market = {"MarketType": "spot", "SpotOptions": options}
    patient.worker["node_config"]["InstanceMarketOptions"] = market


def _image(patient: Patient) -> None:
    patient.head["ImageId"] = "ami-none"


def _architecture(patient: Patient) -> None:
    ubuntu = "/aws/service/canonical/ubuntu/server/22.04/stable/current/arm64/hvm/ebs-gp2/ami-id"
    parameter = patient.client("ssm").get_parameter(Name=ubuntu)["Parameter"]
    patient.head["ImageId"] = parameter["Value"]


def _small_root(patient: Patient) -> None:
    """The seed's third failure, where AWS itself would refuse."""
    patient.head["ImageId"] = patient.client().register_image(Name="big")["ImageId"]
    patient.head["BlockDeviceMappings"] = [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 8}}]


def _no_key_pair(patient: Patient) -> None:
    patient.head["KeyName"] = "nobody"


def _half_a_key_pair(patient: Patient) -> None:
    patient.client().import_key_pair(KeyName="theirs", PublicKeyMaterial=PUBLIC_KEY)
    patient.head["KeyName"] = "theirs"
    mine = new_key("mine")  # another one, which does not open it
    patient.file["auth"].setdefault("ssh_private_key", "~/.ssh/mine")
    patient.home.update({".ssh/mine": mine.private, ".ssh/mine.pub": mine.public})


def _no_group(patient: Patient) -> None:
    patient.head["SecurityGroupIds"] = ["sg-none"]


def _closed_group(patient: Patient) -> None:
    (vpc,) = patient.client().describe_vpcs()["Vpcs"]
    group = patient.client().create_security_group(
        GroupName="web", Description="web", VpcId=vpc["VpcId"]
    )
    patient.head["SecurityGroupIds"] = [group["GroupId"]]


def _closed_rules(patient: Patient) -> None:
    web = {"IpProtocol": "tcp", "FromPort": 20, "ToPort": 30}
    rule = {**web, "IpRanges": [{"CidrIp": "192.0.2.0/24"}]}
    patient.file["provider"]["security_group"] = {"IpPermissions": [rule]}


def _closed_ranges(patient: Patient) -> None:
    patient.file["shoal"] = {**patient.file["shoal"], "ssh_from": ["192.0.2.0/24"]}


def _quota(patient: Patient) -> None:
    patient.cloud.ec2.market.quotas[STANDARD] = 4
    patient.worker["min_workers"] = 3


def _spot_quota(patient: Patient) -> None:
    patient.cloud.ec2.market.quotas[STANDARD_SPOT] = 1
    patient.head["InstanceMarketOptions"] = {"MarketType": "spot"}


def _mount(patient: Patient) -> None:
    patient.file["file_mounts"] = {"/data": "./nowhere"}


def _private_key(patient: Patient) -> None:
    patient.file["auth"]["ssh_private_key"] = "~/.ssh/nowhere.pem"


AILMENTS = {
    "no credentials": Ailment("there are no usable AWS credentials", _no_credentials),
    "another profile": Ailment("there are no usable AWS credentials", _another_profile),
    "expired": Ailment("AWS refused", _expired),
    "region": Ailment("there is no region us-wst-2", _region),
    "permission": Ailment("you may not call ImportKeyPair", _permission),
    "zone": Ailment("there is no subnet in us-west-2z", _zone),
    "private subnets": Ailment("no subnet gives machines public addresses", _private_subnets),
    "no subnets": Ailment("the region has no subnet", _no_subnets),
    "named subnet": Ailment("there is no subnet subnet-none", _named_subnet),
    "type": Ailment("there is no instance type m5.lrage", _type),
    "type elsewhere": Ailment("trn1n.32xlarge is not offered in us-west-2a", _type_elsewhere),
    "persistent": Ailment("persistent spot requests bring back machines", _persistent),
    "image": Ailment("there is no image ami-none", _image),
    "architecture": Ailment("is for arm64, and m5.large is x86_64", _architecture),
    "small root": Ailment("the root volume of 8 GiB is smaller than", _small_root),
    "no key pair": Ailment("there is no key pair nobody", _no_key_pair),
    "half a key pair": Ailment("the private half of the key pair theirs", _half_a_key_pair),
    "no group": Ailment("there is no security group sg-none", _no_group),
    "closed group": Ailment("lets SSH in from", _closed_group),
    "closed rules": Ailment("provider.security_group does not let SSH in", _closed_rules),
    "closed ranges": Ailment("shoal.ssh_from does not let SSH in", _closed_ranges),
    "quota": Ailment("8 vCPUs of on-demand standard machines are wanted", _quota),
    "spot quota": Ailment("2 vCPUs of spot standard machines are wanted", _spot_quota),
    "mount": Ailment("nowhere does not exist", _mount),
    "private key": Ailment("nowhere.pem does not exist", _private_key),
}

# The three that the people met who described the system that they wished for.
SEEDS = ("private subnets", "no credentials", "small root")


def all_at_once(patient: Patient) -> list[str]:
    """A file and an account with twelve of them; what is to be said, in part."""
    names = [
        "mount", "private key", "zone", "quota", "type", "image", "small root", "no key pair",
        "half a key pair", "no group", "closed group", "permission",
    ]  # fmt: skip
    kinds = patient.file["available_node_types"]
    healthy = copy.deepcopy(patient.head)
    for name in names:
        AILMENTS[name].breaks(patient)
        if patient.head != healthy:  # a kind of its own, so that none hides another
            kinds[name] = {"node_config": patient.head, "min_workers": 1, "resources": {}}
            kinds["head"]["node_config"] = copy.deepcopy(healthy)
    patient.file["max_workers"] = 20
    says = {name: AILMENTS[name].says for name in names}
    says["quota"] = "vCPUs of on-demand standard machines are wanted"
    return list(says.values())


async def patient_on(bed: Bed, patient: Patient, command: str) -> Result:
    """A command on the laptop, with the person's file, home and environment."""
    for name, text in {**patient.home, "c.yaml": json.dumps(patient.file, indent=1)}.items():
        place = shlex.quote(name)
        write = f'umask 077; mkdir -p "$(dirname {place})" && cat > {place}'
        (await bed.laptop.run(write, stdin=text)).require(name)
    unset = "".join(f"-u {n} " for n, value in patient.environment.items() if value is None)
    given = {n: value for n, value in patient.environment.items() if value is not None}
    words = " ".join(f"{n}={shlex.quote(value)}" for n, value in given.items())
    return await bed.laptop.run(f"env {unset}{words} {SHOAL} {command}", timeout=120)
