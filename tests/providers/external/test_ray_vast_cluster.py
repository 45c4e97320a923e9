"""`ray-vast` from PyPI, unchanged, sized by Shoal's controller with real Ray.

Offers of the stand-in API are simulated hosts behind a NAT. Each runs the command that `ray-vast`
gives to its containers, which downloads its bootstrap program from the head, checks the host,
enrolls, and starts Ray with TLS, a token and an LD_PRELOAD library. Nothing of it is replaced: the
host has what a container of vast has (its variables, a public address that is not on its
interface, hairpin NAT, no NET_ADMIN and NET_RAW), and the host names that the package calls lead
to the bed. The head is not an instance of the simulated EC2, so the rules that the class adds to a
security group there do not guard it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest

from tests.polling import until
from tests.providers.external.cluster_bed import RAY, Bed
from tests.providers.external.vast_api import (
    ACCOUNT_KEY,
    API_HOST,
    ECHO_HOSTS,
    Container,
    VastApi,
)
from tests.providers.local.ssh_bed import USE_OUR_RAY
from tests.simcloud.cloud import SimCloud
from tests.simcloud.gce_tls import BUNDLE, Authority
from tests.simcloud.host_image import Machine
from tests.simcloud.hosts import Host
from tests.simcloud.keys import new_key
from tests.simcloud.network import SERVICES

pytest.importorskip("ray_vast")
pytestmark = [pytest.mark.simcloud, pytest.mark.ray, pytest.mark.long]

HEAD = "198.51.100.30"
SECRETS = "/home/ubuntu/secrets"
CONTROLLER = "home/ubuntu/.shoal/controller"

# Containers have private addresses, and those whom they call see the public ones.
NAT = "add rule inet fabric outbound ip saddr 10.30.0.0/16 snat ip to ip saddr map @public_of"

# Two actors that each take a whole worker. Ray starts them again if their worker is lost. The
# program asks them when there is a file /tmp/release on the head.
RESTARTED_ACTORS = """
import pathlib, time, ray
ray.init(log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=-1)
class Worker:
    def where(self):
        return ray.util.get_node_ip_address()

workers = [Worker.remote() for _ in range(2)]
while not pathlib.Path("/tmp/release").exists():
    time.sleep(0.2)
print("done on", *sorted(ray.get([worker.where.remote() for worker in workers])))
"""

MAKE_SECRETS = f"""
from ray_vast import pki
pki.write_head_files({SECRETS!r}, {HEAD!r})
open({SECRETS + "/vast_api_key"!r}, "w").write({ACCOUNT_KEY!r})
"""

# What a user of `ray-vast` has in the shell of the head.
USE_TLS = "echo 'export {}' >> ~/.bashrc".format(
    " ".join(
        [
            "RAY_USE_TLS=1",
            f"RAY_TLS_SERVER_CERT={SECRETS}/head.pem",
            f"RAY_TLS_SERVER_KEY={SECRETS}/head.key",
            f"RAY_TLS_CA_CERT={SECRETS}/ca.pem",
        ]
    )
)


@dataclass
class VastHosts:
    """The hosts behind the instances."""

    cloud: SimCloud
    authority: Authority
    _public: dict[str, str] = field(default_factory=dict)

    async def boot(self, container: Container) -> None:
        address = _private_address(container)
        self._public[address] = container.public_address
        await self.cloud.fabric.publish(container.public_address, address)
        run = ["setpriv", "--bounding-set=-net_admin,-net_raw", "env", f"SSL_CERT_FILE={BUNDLE}"]
        variables = [f"{name}={value}" for name, value in container.environment.items()]
        command = shlex.join([*run, *variables, *container.command])
        machine = Machine(
            name=f"vast-{container.id}",
            address=address,
            host_key=new_key("vast"),
            image=self.authority.image,
            user_data=f"#!/bin/sh\nexec {command}\n",
        )
        host = await self.cloud.build(machine)
        learn_names(host)
        await host.boot()

    async def destroy(self, container: Container) -> None:
        address = _private_address(container)
        await self.cloud.destroy(self.cloud.hosts[address])
        await self.cloud.fabric.withdraw(container.public_address, address)

    def public_address(self, private: str) -> str:
        """The address that a service outside sees."""
        return self._public[private]


def _private_address(container: Container) -> str:
    return f"10.30.0.{container.id}"


def learn_names(host: Host) -> None:
    host.learn(Machine(API_HOST, SERVICES, new_key("vast"), aliases=ECHO_HOSTS))


@dataclass
class VastBed(Bed):
    """With the API of vast.ai, and a head of the user's own."""

    vast: VastApi
    head: Host

    @property
    def client(self) -> Any:
        return boto3.client("ec2", **self.cloud.ec2.client_options())

    def group(self) -> dict[str, Any]:
        """The security group that the class opens for its workers."""
        groups = self.client.describe_security_groups(GroupNames=["default"])["SecurityGroups"]
        return dict(groups[0])

    def open_addresses(self) -> list[str]:
        rules = [rule for p in self.group()["IpPermissions"] for rule in p["IpRanges"]]
        return [rule["CidrIp"] for rule in rules if rule.get("Description") == "ray-vast:cloudy"]

    async def prepare(self) -> None:
        """What `ray-vast` needs on the head, and the cluster file."""
        made = await self.head.run(["python", "-c", MAKE_SECRETS], user="ubuntu")
        made.require("making the secrets")
        start = f"ray start --head --port=6379 --node-ip-address={HEAD} {RAY}"
        worker = {"node_config": {"offer_query": {}, "disk_gb": 10}, "resources": {"CPU": 1}}
        await self.write(
            {
                "type": "external",
                "module": "ray_vast.provider.VastNodeProvider",
                "disable_node_updaters": True,
                "head_ip": HEAD,
                "secrets_dir": SECRETS,
                "security_group_ids": [self.group()["GroupId"]],
                "region": "us-west-2",
                "image": "ray",
                "max_dollars_per_hour": 5.0,
            },
            available_node_types={
                "head": {"node_config": {}, "resources": {"CPU": 0}},
                "worker": {**worker, "min_workers": 1, "max_workers": 2},
            },
            setup_commands=[USE_OUR_RAY, USE_TLS],
            # The class gives its workers the token of its own directory.
            head_start_ray_commands=[f"cp ~/.shoal/auth_token {SECRETS}/token", start],
        )
        await self.laptop.run("cat > code/restarted.py", stdin=RESTARTED_ACTORS)

    def instances(self) -> set[int]:
        return set(self.vast.instances)

    def ready_workers(self) -> int:
        state = json.loads((self.head.root() / CONTROLLER / "state.json").read_text())
        return [(n["role"], n["phase"]) for n in state["nodes"]].count(("worker", "ready"))

    async def kill_controller(self) -> None:
        lock = self.head.root() / CONTROLLER / "controller.lock"
        (await self.head.run(f"kill -9 {lock.read_text()}")).require("killing the controller")

    async def down(self) -> None:
        """The head constructs the class again to terminate the workers, so it ends them before it
        can list them."""
        done = await self.shoal("down c.yaml --yes")
        assert done.code == 0, done.stdout + done.stderr
        assert "the provider no longer knows worker-slot-" in done.stderr
        assert not self.instances()
        assert not self.open_addresses()


@pytest.fixture
async def bed(cloud: SimCloud, laptop: Host) -> AsyncIterator[VastBed]:
    authority = Authority()
    hosts = VastHosts(cloud, authority)
    vast = VastApi(hosts.boot, hosts.destroy, hosts.public_address)
    tls = authority.server_context([API_HOST, *ECHO_HOSTS])
    await cloud.fabric.within(cloud.fabric.nft(NAT))
    runner = await cloud.fabric.within(vast.open(SERVICES, 443, tls))
    head = await cloud.boot(
        HEAD,
        image=authority.image,
        environment={**cloud.ec2.environment(), "REQUESTS_CA_BUNDLE": BUNDLE},
    )
    learn_names(head)
    yield VastBed(cloud, laptop, vast, head)
    await cloud.fabric.within(runner.cleanup())
    authority.close()


async def test_ray_vast_is_sized_by_the_controller_and_leaves_nothing(bed: VastBed) -> None:
    await bed.prepare()
    events = await bed.up()
    assert events[-1]["event"] == "ready" and events[-1]["nodes"] == 2
    assert "a restart of the controller replaces all workers" in {e.get("what") for e in events}
    await bed.assert_ready(2)
    await until(lambda: len(bed.instances()) == 1, "it keeps one of the two that it rented")
    before = bed.instances()
    assert (await bed.up())[-1]["event"] == "unchanged"
    assert bed.instances() == before
    await bed.run_actors()
    await until(lambda: len(bed.instances()) == 1, "the idle worker is terminated", timeout=120)
    await until(lambda: len(bed.open_addresses()) == 1, "its address is closed")
    await bed.down()


async def test_a_killed_controller_of_ray_vast_launches_all_workers_again(bed: VastBed) -> None:
    """To this class a new instance of it means a new cluster: its constructor ends all that it
    rented before, the offer of the interrupted launch and workers with running actors included. So
    nothing is left, and Ray starts the actors again on new workers."""
    await bed.prepare()
    await bed.up()
    before = bed.instances()
    bed.vast.holds_replies = True
    actors = await bed.laptop.popen("exec shoal exec c.yaml 'python code/restarted.py'")
    await until(lambda: bed.instances() - before, "a launch has begun", timeout=120)
    rented = bed.instances()
    await bed.kill_controller()
    bed.vast.holds_replies = False
    await until(lambda: not bed.instances() & rented, "all instances are ended", timeout=120)
    await until(
        lambda: len(bed.instances()) == 2 and bed.ready_workers() == 2,
        "two workers are ready",
        timeout=240,
    )
    await bed.assert_ready(3)
    (await bed.head.run("touch /tmp/release")).require("releasing the actors")
    done = await actors.finish(timeout=280)
    addresses = sorted(i["public_ipaddr"] for i in bed.vast.instances.values())
    assert f"done on {' '.join(addresses)}" in done.stdout, done.stdout + done.stderr
    await bed.down()
