"""The example provider of the documentation, on a made-up cloud that boots simulated hosts."""

from __future__ import annotations

import json
import shlex
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.providers.local.ssh_bed import QUICK_START, actions
from tests.providers.nimbus_api import NimbusApi
from tests.simcloud.cloud import SimCloud
from tests.simcloud.console import Result
from tests.simcloud.host_image import PROJECT
from tests.simcloud.hosts import Host
from tests.simcloud.network import SERVICES

pytestmark = pytest.mark.simcloud

URL = f"http://{SERVICES}:8080"
SHOAL = "python -c 'import nimbus; from shoal.__main__ import main; main()'"


def nimbus_on(cloud: SimCloud) -> NimbusApi:
    """The cloud's side: an API that boots and destroys simulated hosts."""

    async def boot(keys: list[str]) -> str:
        return (await cloud.boot(authorized_keys=[cloud.laptop_key.public, *keys])).address

    async def destroy(address: str) -> None:
        await cloud.destroy(cloud.hosts[address])

    return NimbusApi(boot, destroy)


@pytest.fixture
async def nimbus(cloud: SimCloud) -> AsyncIterator[NimbusApi]:
    nimbus = nimbus_on(cloud)
    runner = await cloud.fabric.within(nimbus.open(SERVICES, 8080))
    yield nimbus
    await cloud.fabric.within(runner.cleanup())


async def write_file(laptop: Host, **worker: Any) -> None:
    node_types = {
        "head": {"node_config": {"size": "small"}, "resources": {"CPU": 2}},
        "worker": {
            "node_config": {"size": "large"},
            "resources": {"CPU": 8},
            "min_workers": 1,
            "max_workers": 3,
            **worker,
        },
    }
    content = {
        "cluster_name": "cloudy",
        "max_workers": 3,
        "provider": {"type": "nimbus", "url": URL},
        "auth": {"ssh_user": "ubuntu"},
        "available_node_types": node_types,
        "head_node_type": "head",
        "setup_commands": ["echo done > ~/set-up"],
        **QUICK_START,
    }
    result = await laptop.run("cat > cloudy.yaml", stdin=json.dumps(content))
    result.require("writing the cluster file")


async def shoal(laptop: Host, arguments: str) -> Result:
    path = shlex.quote(f"{PROJECT}/examples/providers")
    return await laptop.run(f"PYTHONPATH={path} {SHOAL} {arguments}", timeout=120)


async def up(laptop: Host) -> list[dict[str, Any]]:
    done = await shoal(laptop, "up cloudy.yaml --yes --json")
    assert done.code == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


async def test_a_cluster_on_a_made_up_cloud_comes_up_grows_and_goes(
    cloud: SimCloud, laptop: Host, nimbus: NimbusApi
) -> None:
    await write_file(laptop)
    events = await up(laptop)
    assert actions(events) == [("create", "1 x head"), ("create", "1 x worker")]
    assert events[-1]["event"] == "ready" and events[-1]["nodes"] == 2
    for record in nimbus.records.values():
        result = await cloud.hosts[record["address"]].run("cat ~ubuntu/set-up")
        assert result.stdout == "done\n", "bootstrap ran on it"
    assert (await up(laptop))[-1]["event"] == "unchanged"

    await write_file(laptop, min_workers=2)
    assert actions(await up(laptop)) == [("create", "1 x worker")]
    assert sorted(r["labels"]["role"] for r in nimbus.records.values()) == [
        "head",
        "worker",
        "worker",
    ]

    listed = await shoal(laptop, "ls --json")
    (summary,) = json.loads(listed.stdout)
    assert (summary["provider"], summary["nodes"]) == ("nimbus", 3)
    assert summary["price_per_hour"] == pytest.approx(0.05 + 2 * 0.4)

    done = await shoal(laptop, "down cloudy --yes")
    assert done.code == 0, done.stderr
    assert nimbus.records == {}


async def test_preflight_of_the_example_provider_names_the_node_type_that_cannot_work(
    laptop: Host, nimbus: NimbusApi
) -> None:
    await write_file(laptop, node_config={"size": "huge"})
    done = await shoal(laptop, "up cloudy.yaml --yes")
    assert done.code != 0
    assert "Nimbus has no size 'huge'" in done.stderr
    assert "use small or large" in done.stderr
    assert nimbus.records == {}
