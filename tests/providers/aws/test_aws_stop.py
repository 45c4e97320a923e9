"""`stop` with spot instances, which can only be terminated, and with instances that appear late.
Without logging in to instances."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.cluster.handle import ClusterHandle
from shoal.cluster.observed_cluster import ObservedCluster
from shoal.controller import client
from shoal.core.errors import ConfigError
from shoal.core.events import PlanStep, Warned
from shoal.ops.context import Context
from shoal.ops.down import down
from shoal.ops.stop_start import stop
from shoal.providers.model import Instance, LaunchRequest, State
from tests.providers.aws.aws_bed import CLUSTER, cluster_file
from tests.providers.aws.provider_account import Account

pytestmark = pytest.mark.simcloud

SPOT = {"InstanceMarketOptions": {"MarketType": "spot"}}


def file_with(account: Account, **spot: bool) -> None:
    types = cluster_file()["available_node_types"]
    for name in spot:
        types[name]["node_config"].update(SPOT)
    account.file(available_node_types=types)


@pytest.fixture
def without_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces everything that logs in to instances."""

    async def observe(handle: ClusterHandle, instances: Any = None) -> ObservedCluster:
        return ObservedCluster(await handle.instances())

    async def stop_controller(handle: ClusterHandle, head: Instance) -> bool:
        return False

    monkeypatch.setattr(ClusterHandle, "observe", observe)
    monkeypatch.setattr(client, "stop_controller", stop_controller)


def context(account: Account) -> Context:
    return Context(account.events.append, home=account.directory / "home")


@pytest.mark.usefixtures("without_login")
async def test_spot_instances_are_terminated_and_late_instances_are_stopped(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_with(account, worker=True)
    await account.launch(workers=1)

    async def launch_late_worker(handle: ClusterHandle, head: Instance) -> bool:
        late = LaunchRequest("worker", "worker", 1, "late", market="on-demand")
        await handle.provider.launch(handle.spec, [late])
        return False

    monkeypatch.setattr(client, "stop_controller", launch_late_worker)
    stopped = await stop(context(account), account.spec)
    steps = {e.subject[:4]: e.action for e in account.events if isinstance(e, PlanStep)}
    assert steps == {"head": "stop", "work": "terminate"}
    assert stopped is not None and stopped.nodes == 2
    instances = await account.provider().list_instances(CLUSTER)
    assert {(i.role, i.market, i.state) for i in instances} == {
        ("head", "on-demand", State.STOPPED),
        ("worker", "on-demand", State.STOPPED),
    }
    await account.down()


@pytest.mark.usefixtures("without_login")
async def test_a_cluster_with_a_spot_head_cannot_be_stopped_only_terminated(
    account: Account,
) -> None:
    file_with(account, head=True)
    await account.launch(workers=1)
    with pytest.raises(ConfigError) as caught:
        await stop(context(account), account.spec)
    assert caught.value.fix == "shoal down CLUSTER"
    assert len(account.cloud.ledger.running()) == 2

    account.file(shoal={"down": "stop"})
    assert (await down(context(account), account.spec)).terminated == 2
    (warning,) = [e for e in account.events if isinstance(e, Warned)]
    assert "cannot be stopped" in warning.why
    await account.cloud.assert_nothing_left()
