"""Plain boto3, ssh, rsync and ray on this cloud: no part of Shoal is needed for any of it."""

from __future__ import annotations

import asyncio
from typing import Any

import boto3
import pytest

from tests.polling import until
from tests.simcloud.cloud import SimCloud
from tests.simcloud.hosts import Host

pytestmark = [pytest.mark.simcloud, pytest.mark.ray, pytest.mark.long]

RAY = "--disable-usage-stats --num-cpus=1 --object-store-memory=100000000"

WHERE_TASKS_RUN = """
import ray, socket, time
ray.init(address="auto", log_to_driver=False)

@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def where():
    time.sleep(1)
    return socket.gethostname()

print(*sorted(set(ray.get([where.remote() for _ in range(3)]))))
"""

ALIVE = """
import ray
ray.init(address="auto", log_to_driver=False)
print(*sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]))
"""


class Account:
    """The calls that a person would make by hand."""

    def __init__(self, cloud: SimCloud) -> None:
        self.ec2 = boto3.client("ec2", **cloud.ec2.client_options())

    def make_network(self) -> tuple[str, str]:
        vpc = self.ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
        subnet = self.ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.1.0/24")["Subnet"]["SubnetId"]
        self.ec2.modify_subnet_attribute(SubnetId=subnet, MapPublicIpOnLaunch={"Value": True})
        group = self.ec2.create_security_group(GroupName="three", Description="-", VpcId=vpc)
        ssh = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
        self.ec2.authorize_security_group_ingress(
            GroupId=group["GroupId"],
            IpPermissions=[
                {**ssh, "IpRanges": [{"CidrIp": "198.51.100.20/32"}]},
                {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group["GroupId"]}]},
            ],
        )
        return subnet, group["GroupId"]

    def launch(self, count: int, subnet: str, group: str) -> tuple[str, list[str]]:
        key = self.ec2.create_key_pair(KeyName="three", KeyType="ed25519")
        reply = self.ec2.run_instances(
            ImageId="ami-12345678",
            InstanceType="m5.large",
            MinCount=count,
            MaxCount=count,
            KeyName="three",
            SubnetId=subnet,
            SecurityGroupIds=[group],
        )
        ids = [instance["InstanceId"] for instance in reply["Instances"]]
        waiter = self.ec2.get_waiter("instance_running")
        waiter.wait(InstanceIds=ids, WaiterConfig={"Delay": 0.2, "MaxAttempts": 100})
        return key["KeyMaterial"], ids

    def describe(self, ids: list[str]) -> list[dict[str, Any]]:
        reply = self.ec2.describe_instances(InstanceIds=ids)
        return [one for group in reply["Reservations"] for one in group["Instances"]]

    def give_back(self, ids: list[str], group: str) -> None:
        self.ec2.terminate_instances(InstanceIds=ids)
        waiter = self.ec2.get_waiter("instance_terminated")
        waiter.wait(InstanceIds=ids, WaiterConfig={"Delay": 0.2, "MaxAttempts": 100})
        self.ec2.delete_security_group(GroupId=group)
        self.ec2.delete_key_pair(KeyName="three")


async def test_three_instances_form_a_ray_cluster_that_notices_a_cut_host(
    cloud: SimCloud, laptop: Host
) -> None:
    account = await asyncio.to_thread(Account, cloud)
    subnet, group = await asyncio.to_thread(account.make_network)
    key, ids = await asyncio.to_thread(account.launch, 3, subnet, group)
    machines = await asyncio.to_thread(account.describe, ids)
    private = [machine["PrivateIpAddress"] for machine in machines]
    public = [machine["PublicIpAddress"] for machine in machines]
    await laptop.run("umask 077; cat > key.pem; mkdir code", stdin=key)
    for name, text in (("where.py", WHERE_TASKS_RUN), ("alive.py", ALIVE)):
        await laptop.run(f"cat > code/{name}", stdin=text)
    ssh = ["ssh", "-i", "key.pem", "-o", "StrictHostKeyChecking=no"]

    async def on(number: int, command: str) -> str:
        result = await laptop.run([*ssh, f"ubuntu@{public[number]}", command], timeout=60)
        assert result.code == 0, result.stdout + result.stderr
        return result.stdout.strip()

    sent = await laptop.run(["rsync", "-a", "-e", " ".join(ssh), "code", f"ubuntu@{public[0]}:"])
    assert sent.code == 0, sent.stderr
    # Quick to notice a silent node, or this test would wait for half a minute.
    checks = "RAY_health_check_period_ms=500 RAY_health_check_timeout_ms=500"
    checks += " RAY_health_check_failure_threshold=3 RAY_health_check_initial_delay_ms=0"
    await on(0, f"{checks} ray start --head --port=6379 --include-dashboard=false {RAY}")
    join = f"ray start --address={private[0]}:6379 {RAY}"
    await asyncio.gather(on(1, join), on(2, join))

    hostnames = [f"ip-{address.replace('.', '-')}" for address in private]
    assert (await on(0, "python code/where.py")).split() == sorted(hostnames)

    await cloud.ec2.host(ids[2]).cut()

    async def noticed() -> bool:
        return (await on(0, "python code/alive.py")).split() == sorted(private[:2])

    await until(noticed, "Ray gave up the host that was cut off", timeout=40)

    await asyncio.to_thread(account.give_back, ids, group)
    await cloud.assert_nothing_left()
    assert not cloud.ledger.running()
