"""The example provider of the documentation, on a made-up cloud that boots simulated hosts."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from tests.providers.local.ssh_bed import QUICK_START, actions
from tests.simcloud.cloud import SimCloud
from tests.simcloud.console import Result
from tests.simcloud.host_image import PROJECT
from tests.simcloud.hosts import Host
from tests.simcloud.network import SERVICES

pytestmark = pytest.mark.simcloud

PRICES = {"small": 0.05, "large": 0.4}
URL = f"http://{SERVICES}:8080"
SHOAL = "python -c 'import nimbus; from shoal.__main__ import main; main()'"


class Nimbus:
    """The cloud's side: an HTTP API that boots and destroys simulated hosts."""

    def __init__(self, cloud: SimCloud) -> None:
        self._cloud = cloud
        self._hosts: dict[str, Host] = {}
        self.records: dict[str, dict[str, Any]] = {}

    async def open(self) -> web.AppRunner:
        application = web.Application()
        application.router.add_get("/sizes", self._sizes)
        application.router.add_get("/instances", self._list)
        application.router.add_post("/instances", self._launch)
        application.router.add_delete("/instances/{id}", self._terminate)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, SERVICES, 8080).start()
        return runner

    async def _sizes(self, request: web.Request) -> web.Response:
        return web.json_response(PRICES)

    async def _list(self, request: web.Request) -> web.Response:
        cluster = request.query.get("cluster")
        records = self.records.values()
        return web.json_response([r for r in records if cluster in (None, r["labels"]["cluster"])])

    async def _launch(self, request: web.Request) -> web.Response:
        body = await request.json()
        launched = [r for r in self.records.values() if r["token"] == body["token"]]
        for _ in range(body["count"] - len(launched)):
            host = await self._cloud.boot()
            record = {
                "id": host.name,
                "state": "running",
                "address": host.address,
                "created_at": time.time(),
                "price_per_hour": PRICES[body["size"]],
                "token": body["token"],
                "labels": body["labels"],
            }
            self._hosts[host.name] = host
            self.records[host.name] = record
            launched.append(record)
        return web.json_response(launched)

    async def _terminate(self, request: web.Request) -> web.Response:
        id = request.match_info["id"]
        await self._cloud.destroy(self._hosts.pop(id))
        del self.records[id]
        return web.json_response({})


@pytest.fixture
async def nimbus(cloud: SimCloud) -> AsyncIterator[Nimbus]:
    nimbus = Nimbus(cloud)
    runner = await cloud.fabric.within(nimbus.open())
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
    cloud: SimCloud, laptop: Host, nimbus: Nimbus
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
    laptop: Host, nimbus: Nimbus
) -> None:
    await write_file(laptop, node_config={"size": "huge"})
    done = await shoal(laptop, "up cloudy.yaml --yes")
    assert done.code != 0
    assert "Nimbus has no size 'huge'" in done.stderr
    assert "use small or large" in done.stderr
    assert nimbus.records == {}
