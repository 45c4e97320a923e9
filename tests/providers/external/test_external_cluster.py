"""Clusters whose nodes a class of somebody else launches, sized by the controller with real Ray."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.polling import until
from tests.providers.external.cluster_bed import Bed
from tests.providers.nimbus_api import NimbusApi
from tests.providers.test_example_provider import nimbus_on
from tests.simcloud.cloud import SimCloud
from tests.simcloud.host_image import PROJECT
from tests.simcloud.hosts import Host
from tests.simcloud.network import SERVICES

pytestmark = [pytest.mark.simcloud, pytest.mark.ray]


def role(record: dict[str, Any]) -> str:
    """The role of an instance, as Ray's classes or the documented provider label it."""
    return str(record["labels"].get("ray-node-type") or record["labels"].get("role"))


@dataclass
class NimbusBed(Bed):
    """With the API of a made-up cloud."""

    nimbus: NimbusApi

    def workers(self) -> list[str]:
        records = self.nimbus.records.values()
        return [r["id"] for r in records if role(r) == "worker"]

    async def kill_controller(self) -> None:
        (head,) = [r for r in self.nimbus.records.values() if role(r) == "head"]
        host = self.cloud.hosts[head["address"]]
        await host.run("kill -9 $(cat ~ubuntu/.shoal/controller/controller.lock)")

    async def down(self) -> None:
        await super().down()
        assert self.nimbus.records == {}


@pytest.fixture
async def bed(cloud: SimCloud, laptop: Host) -> AsyncIterator[NimbusBed]:
    nimbus = nimbus_on(cloud)
    runner = await cloud.fabric.within(nimbus.open(SERVICES, 8080))
    yield NimbusBed(cloud, laptop, nimbus)
    await cloud.fabric.within(runner.cleanup())


def nimbus_nodes(kind: str) -> dict[str, Any]:
    return {"type": "external", "module": f"nimbus_nodes.{kind}", "url": f"http://{SERVICES}:8080"}


async def test_somebody_elses_class_is_sized_by_the_controller_and_leaves_nothing(
    bed: NimbusBed,
) -> None:
    await bed.write(nimbus_nodes("NimbusNodes"))
    events = await bed.up()
    assert events[-1]["event"] == "ready" and events[-1]["nodes"] == 2
    assert len(bed.workers()) == 1, "min_workers is 1, and the controller launched it"
    await bed.assert_ready(2)
    await bed.run_actors()
    assert len(bed.workers()) == 2
    await until(lambda: len(bed.workers()) == 1, "the idle worker is terminated", timeout=90)
    assert (await bed.up())[-1]["event"] == "unchanged"
    await bed.down()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["HangingNodes", "RaisingNodes", "LosesTags", "NimbusNodes"])
async def test_the_controller_is_killed_in_the_middle_of_a_launch(
    bed: NimbusBed, kind: str
) -> None:
    """With classes that misbehave in that launch, and listings that are late."""
    bed.nimbus.lag_s = 5.0 if kind == "NimbusNodes" else 0.0
    await bed.write(nimbus_nodes(kind))
    up = await bed.laptop.popen("exec shoal up c.yaml --yes")

    def has_begun() -> bool:
        if kind != "RaisingNodes":
            return bed.nimbus.calls.count("launch") > 1  # the first is the head's
        heads = [bed.cloud.hosts[r["address"]] for r in bed.nimbus.records.values() if r["address"]]
        return any((head.root() / "home/ubuntu/misbehaved").exists() for head in heads)

    await until(has_begun, "the controller launches a worker", timeout=200)
    await bed.kill_controller()
    done = await up.finish(timeout=300)
    assert done.code == 0, done.stdout + done.stderr
    assert len(bed.workers()) == 1, "the launch was not repeated"
    await bed.run_actors()
    assert len(bed.workers()) == 2
    await bed.down()


@pytest.mark.long
async def test_the_documented_provider_comes_from_a_package_and_is_sized_by_the_controller(
    bed: NimbusBed,
) -> None:
    """The example of Shoal's own protocol, found by its entry point."""
    example = f"{PROJECT}/examples/providers/nimbus.py"
    install = (
        "mkdir -p plugins/nimbus-1.dist-info && cd plugins && "
        f"cp {example} . && cd nimbus-1.dist-info && "
        "printf 'Metadata-Version: 2.1\\nName: nimbus\\nVersion: 1\\n' > METADATA && "
        "printf '[shoal.providers]\\nnimbus = nimbus:NimbusProvider\\n' > entry_points.txt && "
        "echo nimbus > top_level.txt && "
        """echo '{"url": "file:///plugins", "dir_info": {"editable": true}}' > direct_url.json"""
    )
    (await bed.laptop.run(install)).require("installing the provider")
    bed.environment = "PYTHONPATH=$HOME/plugins"
    await bed.write({"type": "nimbus", "url": f"http://{SERVICES}:8080"})
    events = await bed.up()
    assert events[-1]["event"] == "ready" and events[-1]["nodes"] == 2
    launches = bed.nimbus.calls.count("launch")
    actors = await bed.laptop.popen(
        "PYTHONPATH=$HOME/plugins exec shoal exec c.yaml 'python code/actors.py'"
    )
    await until(
        lambda: bed.nimbus.calls.count("launch") > launches, "a launch has begun", timeout=120
    )
    await bed.kill_controller()
    done = await actors.finish(timeout=280)
    assert "done on 2" in done.stdout, done.stdout + done.stderr
    assert len(bed.workers()) == 2, "the launch was not repeated"
    await until(lambda: len(bed.workers()) == 1, "the idle worker is terminated", timeout=90)
    await bed.down()
