"""Files in the shape of Ray's examples for AWS, from 2017 until today: they pass the checks, and
what is launched is what they say. `test_example_files.py` brings some of them up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import boto3
import pytest
import yaml

from shoal import spec as specs
from shoal.cluster.observed_cluster import ObservedCluster
from shoal.core.clock import SystemClock
from shoal.core.errors import ConfigError
from shoal.core.events import Event, PreflightFinding
from shoal.ops.context import Context
from shoal.ops.preview import show_plan
from shoal.ops.up_plan import plan_up
from shoal.providers import provider_for
from shoal.providers.model import LaunchRequest
from shoal.ray_runtime.start_commands import adapt_start_command, gcs_port
from shoal.spec.cluster_spec import ClusterSpec
from tests.providers.aws.provider_account import Account

pytestmark = pytest.mark.simcloud

# The AMI of Ray's examples, deprecated since 2022.
OLD_AMI = "ami-0387d929287ab193e"

OF_2017 = f"""
cluster_name: default
min_workers: 2
max_workers: 2
target_utilization_fraction: 0.8
idle_timeout_minutes: 5
provider: {{type: aws, region: us-west-2, availability_zone: us-west-2b}}
auth: {{ssh_user: ubuntu}}
head_node:
    InstanceType: m5.large
    ImageId: {OLD_AMI}
worker_nodes:
    InstanceType: m5.large
    ImageId: {OLD_AMI}
    InstanceMarketOptions:
        MarketType: spot
file_mounts: {{}}
setup_commands:
    - pip install -U ray==0.3.1
head_setup_commands:
    - pip install boto3==1.4.8
worker_setup_commands: []
head_start_ray_commands:
    - ray stop
    - ray start --head --redis-port=6380 --autoscaling-config=~/ray_bootstrap_config.yaml
worker_start_ray_commands:
    - ray stop
    - ray start --redis-address=$RAY_HEAD_IP:6380
"""

OF_2018 = f"""
cluster_name: default
min_workers: 0
max_workers: 2
docker: {{image: "", container_name: ""}}
provider: {{type: aws, region: us-west-2, availability_zone: "us-west-2a,us-west-2b"}}
auth: {{ssh_user: ubuntu}}
head_node:
    InstanceType: m5.large
    ImageId: {OLD_AMI}
    BlockDeviceMappings:
        - DeviceName: /dev/sda1
          Ebs: {{VolumeSize: 50}}
worker_nodes:
    InstanceType: m5.large
    ImageId: {OLD_AMI}
    InstanceMarketOptions: {{MarketType: spot, SpotOptions: {{MaxPrice: "0.05"}}}}
setup_commands:
    - echo 'export PATH="$HOME/anaconda3/envs/tensorflow_p36/bin:$PATH"' >> ~/.bashrc
"""

SECURITY_GROUP = """
cluster_name: minimal
max_workers: 1
provider:
  type: aws
  region: us-west-2
  availability_zone: us-west-2a
  security_group:
    GroupName: group_of_ours
    IpPermissions:
      - {FromPort: 443, ToPort: 443, IpProtocol: TCP, IpRanges: [{CidrIp: 0.0.0.0/0}]}
      - {FromPort: 8265, ToPort: 8265, IpProtocol: TCP, IpRanges: [{CidrIp: 0.0.0.0/0}]}
auth: {ssh_user: ubuntu}
"""

HEAD_AND_WORKER_GROUPS = """
cluster_name: sg
max_worker_nodes: 1
provider: {type: aws, region: us-west-2, availability_zone: us-west-2b}
auth: {ssh_user: ubuntu}
available_node_types:
    ray.head.default:
      node_config:
        SecurityGroupIds: [GROUP]
    ray.worker.default:
      node_config:
        SecurityGroupIds: [GROUP]
"""

NETWORK_INTERFACES = """
cluster_name: network_interfaces
max_workers: 2
provider: {type: aws, region: us-west-2, use_internal_ips: True}
auth: {ssh_user: ubuntu}
available_node_types:
  ray.head.default:
    resources: {}
    node_config:
      NetworkInterfaces:
        - {DeviceIndex: 0, SubnetId: SUBNET, PrivateIpAddress: 10.50.1.10, Groups: [GROUP]}
        - {DeviceIndex: 1, SubnetId: SUBNET, PrivateIpAddress: 10.50.1.11, Groups: [GROUP]}
      ImageId: latest_dlami
      InstanceType: m5.large
  ray.worker.efa:
    min_workers: 1
    max_workers: 1
    resources: {}
    node_config:
      NetworkInterfaces:
        - DeviceIndex: 0
          NetworkCardIndex: 0
          AssociatePublicIpAddress: False
          SubnetId: SUBNET
          Groups: [GROUP]
          InterfaceType: efa
        - DeviceIndex: 1
          NetworkCardIndex: 1
          AssociatePublicIpAddress: False
          SubnetId: SUBNET
          Groups: [GROUP]
          InterfaceType: efa
      ImageId: latest_dlami
      InstanceType: m5.large
head_node_type: ray.head.default
"""

LAUNCH_TEMPLATES = """
cluster_name: launch_templates
max_workers: 2
provider: {type: aws, region: us-west-2, availability_zone: "us-west-2a, us-west-2b, us-west-2c"}
auth: {ssh_user: ubuntu}
available_node_types:
  ray.head.default:
    resources: {}
    node_config:
      LaunchTemplate: {LaunchTemplateId: TEMPLATE, Version: $Latest}
      ImageId: latest_dlami
      InstanceType: m5a.large
  ray.worker.default:
    min_workers: 1
    max_workers: 1
    resources: {}
    node_config:
      LaunchTemplate: {LaunchTemplateName: OurTemplate, Version: 1}
      ImageId: latest_dlami
      InstanceType: m5a.large
head_node_type: ray.head.default
"""

CLOUDWATCH = f"""
cluster_name: cloudwatch
max_workers: 2
provider:
    type: aws
    region: us-west-2
    availability_zone: us-west-2a
    cloudwatch:
        agent: {{config: agent.json, retryer: {{max_attempts: 120, delay_seconds: 30}}}}
        dashboard: {{name: ours, config: dashboard.json}}
        alarm: {{config: alarm.json}}
auth: {{ssh_user: ubuntu}}
available_node_types:
  ray.head.default:
      node_config: {{InstanceType: c5a.large, ImageId: {OLD_AMI}}}
      resources: {{}}
  ray.worker.default:
      node_config:
        InstanceType: c5a.large
        ImageId: {OLD_AMI}
        IamInstanceProfile: {{Name: ray-autoscaler-cloudwatch-v1}}
      resources: {{}}
      min_workers: 1
      max_workers: 2
head_node_type: ray.head.default
"""

AUTO_INSTANCE_TYPE = """
cluster_name: auto_instance_type
min_workers: 1
max_workers: 10
provider:
    type: aws
    region: us-west-2
    available_instance_types:
        m4.4xlarge: {resources: {CPU: 16}, max_count: 10, default: True}
auth: {ssh_user: ubuntu}
head_node: {InstanceType: m4.large, ImageId: latest_dlami}
worker_nodes: {InstanceType: auto, ImageId: latest_dlami}
"""


@dataclass
class Launched:
    """The findings of the checks, and the instances by node type."""

    warnings: list[str]
    records: dict[str, list[dict[str, Any]]]

    def one(self, node_type: str) -> dict[str, Any]:
        (record,) = self.records[node_type]
        return record


def load(account: Account, text: str) -> ClusterSpec:
    path = account.directory / "c.yaml"
    path.write_text(text)
    return specs.load(str(path)).launchable()


def client(account: Account, service: str = "ec2") -> Any:
    return boto3.client(service, **account.cloud.ec2.client_options())


async def launch(account: Account, text: str, *, workers: bool = False) -> Launched:
    """Check a file and launch what `up` would, with `workers` one of each worker type, too."""
    account.cloud.ec2.boot_delay(3600)  # nothing here logs in
    spec = load(account, text)
    events: list[Event] = []
    await show_plan(Context(emit=events.append, home=account.directory / "shoal"), spec)
    requests = list(plan_up(spec, ObservedCluster()).launches)
    if workers:
        names = [n for n in spec.node_types if n not in {r.node_type for r in requests}]
        requests += [LaunchRequest(name, "worker", 1, name) for name in names]
    provider = provider_for(spec, account.directory / "home", SystemClock())
    created = await provider.launch(spec, requests)
    records: dict[str, list[dict[str, Any]]] = {}
    for instance in created:
        found = client(account).describe_instances(InstanceIds=[instance.id])
        records.setdefault(instance.node_type, []).append(found["Reservations"][0]["Instances"][0])
    warnings = [event.what for event in events if isinstance(event, PreflightFinding)]
    return Launched(warnings, records)


async def clean_up(account: Account, text: str) -> None:
    """Check that everything that the launch created can be removed."""
    spec = load(account, text)
    provider = provider_for(spec, account.directory / "another-home", SystemClock())
    await provider.terminate(spec, await provider.list_instances(spec.cluster_name))
    await provider.release(spec)
    await account.cloud.assert_nothing_left()


@dataclass
class OwnNetwork:
    subnet: str
    group: str

    @classmethod
    async def create(cls, account: Account) -> OwnNetwork:
        ec2 = client(account)
        vpc = ec2.create_vpc(CidrBlock="10.50.0.0/16")["Vpc"]["VpcId"]
        zone = "us-west-2b"
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.50.1.0/24", AvailabilityZone=zone)
        subnet_id = subnet["Subnet"]["SubnetId"]
        ec2.modify_subnet_attribute(SubnetId=subnet_id, MapPublicIpOnLaunch={"Value": True})
        group = ec2.create_security_group(GroupName="own", Description="-", VpcId=vpc)["GroupId"]
        ssh = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[ssh])
        await account.cloud.ec2.set_leftover_baseline()
        return cls(subnet_id, group)

    def fill(self, text: str) -> str:
        return text.replace("SUBNET", self.subnet).replace("GROUP", self.group)


async def test_a_file_of_2017_launches_spot_workers_in_its_zone(account: Account) -> None:
    launched = await launch(account, OF_2017)
    assert [w for w in launched.warnings if "deprecated" not in w] == []
    records = [record for records in launched.records.values() for record in records]
    assert sorted(r.get("InstanceLifecycle", "on-demand") for r in records) == [
        "on-demand", "spot", "spot",
    ]  # fmt: skip
    assert {r["Placement"]["AvailabilityZone"] for r in records} == {"us-west-2b"}
    assert {r["ImageId"] for r in records} == {OLD_AMI}
    await clean_up(account, OF_2017)


def test_the_options_of_old_start_commands_have_their_present_names() -> None:
    data = yaml.safe_load(OF_2017)
    (_, head), (_, worker) = data["head_start_ray_commands"], data["worker_start_ray_commands"]
    assert gcs_port([head]) == 6380
    assert "--head --port=6380" in adapt_start_command(head, "10.0.0.1")
    assert "--address=$RAY_HEAD_IP:6380" in adapt_start_command(worker, "10.0.0.2")


async def test_a_file_of_2018_has_no_container_and_its_own_root_volume(account: Account) -> None:
    assert load(account, OF_2018).head_setup.container is None
    launched = await launch(account, OF_2018, workers=True)
    sizes = {
        v["Attachments"][0]["InstanceId"]: v["Size"]
        for v in client(account).describe_volumes()["Volumes"]
        if v["Attachments"]
    }
    # Both launches run at the same time, so either record may come first.
    records = [record for records in launched.records.values() for record in records]
    assert sorted(sizes[r["InstanceId"]] for r in records) == [50, 100]
    await clean_up(account, OF_2018)


async def test_a_named_group_is_created_with_the_files_rules_and_ssh(account: Account) -> None:
    launched = await launch(account, SECURITY_GROUP)
    filters = [{"Name": "group-name", "Values": ["group_of_ours"]}]
    (group,) = client(account).describe_security_groups(Filters=filters)["SecurityGroups"]
    ports = {rule.get("FromPort") for rule in group["IpPermissions"]}
    assert ports >= {22, 443, 8265}
    head = launched.one("ray.head.default")
    assert [g["GroupId"] for g in head["SecurityGroups"]] == [group["GroupId"]]
    await clean_up(account, SECURITY_GROUP)


async def test_nodes_are_in_the_vpc_of_their_groups(account: Account) -> None:
    network = await OwnNetwork.create(account)
    text = network.fill(HEAD_AND_WORKER_GROUPS)
    launched = await launch(account, text, workers=True)
    for name in ("ray.head.default", "ray.worker.default"):
        record = launched.one(name)
        assert record["SubnetId"] == network.subnet
        assert [g["GroupId"] for g in record["SecurityGroups"]] == [network.group]
    await clean_up(account, text)


async def test_network_interfaces_are_passed_as_they_are(account: Account) -> None:
    network = await OwnNetwork.create(account)
    text = network.fill(NETWORK_INTERFACES)
    launched = await launch(account, text)
    assert launched.one("ray.head.default")["PrivateIpAddress"] == "10.50.1.10"
    calls = [e.call for e in account.cloud.ledger.entries if e.call.action == "RunInstances"]
    (efa,) = {
        call.params["NetworkInterface.2.InterfaceType"]
        for call in calls
        if "NetworkInterface.2.InterfaceType" in call.params and "DryRun" not in call.params
    }
    assert efa == "efa"
    assert not any("SubnetId" in call.params for call in calls)
    await clean_up(account, text)


async def test_launch_templates_are_read_by_id_and_by_name(account: Account) -> None:
    network = await OwnNetwork.create(account)
    ec2 = client(account)
    data = {"SecurityGroupIds": [network.group], "TagSpecifications": [
        {"ResourceType": "instance", "Tags": [{"Key": "from", "Value": "template"}]},
    ]}  # fmt: skip
    template = ec2.create_launch_template(
        LaunchTemplateName="OurTemplate", LaunchTemplateData=data
    )["LaunchTemplate"]["LaunchTemplateId"]
    text = LAUNCH_TEMPLATES.replace("TEMPLATE", template)
    launched = await launch(account, text)
    for name in ("ray.head.default", "ray.worker.default"):
        record = launched.one(name)
        assert record["InstanceType"] == "m5a.large"
        assert [g["GroupId"] for g in record["SecurityGroups"]] == [network.group]
        assert {"Key": "from", "Value": "template"} in record["Tags"]
    await clean_up(account, text)


async def test_cloudwatch_settings_are_reported_and_do_no_harm(account: Account) -> None:
    profile = "ray-autoscaler-cloudwatch-v1"
    iam = client(account, "iam")
    iam.create_instance_profile(InstanceProfileName=profile)
    await account.cloud.ec2.set_leftover_baseline()
    launched = await launch(account, CLOUDWATCH)
    assert any("cloudwatch" in warning for warning in launched.warnings)
    worker = launched.one("ray.worker.default")
    assert worker["IamInstanceProfile"]["Arn"].endswith(f"/{profile}")
    await clean_up(account, CLOUDWATCH)


async def test_an_automatic_instance_type_is_refused_before_anything_is_created(
    account: Account,
) -> None:
    """Ray dropped it in 2020, for node types."""
    with pytest.raises(ConfigError):
        await launch(account, AUTO_INSTANCE_TYPE)
    await account.cloud.assert_nothing_left()
