"""Which hosts of the list `launch` picks, by the claims on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from shoal.bootstrap.existing_hosts import cleanup_command
from shoal.cluster.handle import ClusterHandle
from shoal.controller.node_manager import ProviderNodeManager
from shoal.core.clock import SystemClock
from shoal.core.errors import CapacityError, ClaimedError, SetupError
from shoal.core.node_phase import Role
from shoal.providers.local.local_provider import LocalProvider
from shoal.providers.model import Instance, LaunchRequest, State
from shoal.remote.local_runner import LocalRunner
from shoal.remote.runner import Completed, OnBytes
from shoal.remote.ssh_runner import SshRunner
from shoal.spec.cluster_spec import ClusterSpec, ProviderSpec
from tests.specs import cluster

HEAD, FIRST, SECOND, THIRD = "192.0.2.10", "192.0.2.11", "192.0.2.12", "192.0.2.13"
OTHER_CLUSTER = "other@192.0.2.99 worker-1"


@dataclass
class HostWithClaim:
    """A host that prints its claim."""

    claim: str

    async def open_connection(self, *, timeout: float) -> None:
        pass

    async def run(self, command: str, *, on_bytes: OnBytes, **_: Any) -> Completed:
        if self.claim:
            on_bytes(self.claim.encode(), "stdout")
        return Completed(0)


class ClaimedHosts(LocalProvider):
    """A head and three workers, some of which have a claim."""

    def __init__(self, home: Path, *, on_head: bool = False, **claims: str) -> None:
        super().__init__(local_spec(), home, SystemClock(), on_head=on_head)
        names = {FIRST: "first", SECOND: "second", THIRD: "third"}
        self._claims = {address: claims.get(name, "") for address, name in names.items()}

    def _runner(self, address: str) -> SshRunner:
        return cast(SshRunner, HostWithClaim(self._claims.get(address, "")))

    async def pick(self, count: int) -> list[str]:
        instances = await self.launch(
            local_spec(), [LaunchRequest("head", "worker", count, "token")]
        )
        return [instance.id for instance in instances]


def local_spec() -> ClusterSpec:
    settings = {"head_ip": HEAD, "worker_ips": [FIRST, SECOND, THIRD]}
    return replace(cluster(name="mine"), provider=ProviderSpec("local", settings))


async def test_a_host_of_another_cluster_is_picked_last(tmp_path: Path) -> None:
    assert await ClaimedHosts(tmp_path, first=OTHER_CLUSTER).pick(2) == [SECOND, THIRD]
    assert await ClaimedHosts(tmp_path, first=OTHER_CLUSTER).pick(3) == [SECOND, THIRD, FIRST]


async def test_a_host_with_an_unreadable_claim_counts_as_another_clusters(tmp_path: Path) -> None:
    assert await ClaimedHosts(tmp_path, first="? ?").pick(1) == [SECOND]


async def test_the_controller_picks_free_hosts_only(
    tmp_path: Path,
) -> None:
    busy = ClaimedHosts(tmp_path, on_head=True, first=OTHER_CLUSTER, second=OTHER_CLUSTER)
    assert await busy.pick(2) == [THIRD]
    assert await busy.pick(1) == []


async def test_more_workers_than_hosts_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match="4 more workers are needed, but only 3 hosts are free"):
        await ClaimedHosts(tmp_path).pick(4)


def test_a_claimed_host_does_not_blame_its_node_type(tmp_path: Path) -> None:
    handle = ClusterHandle(ClaimedHosts(tmp_path), local_spec())
    node_manager = ProviderNodeManager(handle, SystemClock(), lambda: None, lambda: None)
    assert not node_manager.blames_node_type(ClaimedError("it is another cluster's"))
    assert node_manager.blames_node_type(SetupError("it has no room for Ray"))


@pytest.mark.parametrize(("role", "stays"), [("worker", True), ("head", False)])
async def test_cleaning_up_a_worker_keeps_the_files_of_a_head_in_the_same_home(
    tmp_path: Path, role: Role, stays: bool
) -> None:
    key = tmp_path / ".shoal" / "cluster_key"
    key.parent.mkdir()
    key.touch()
    instance = Instance(FIRST, "mine", "node", "t", role, State.RUNNING, FIRST, None)
    assert (await LocalRunner(tmp_path, {}).run(cleanup_command(instance))).ok
    assert key.exists() is stays


async def test_cleaning_up_a_worker_removes_its_files(tmp_path: Path) -> None:
    (tmp_path / ".shoal").mkdir()
    instance = Instance(FIRST, "mine", "node", "t", "worker", State.RUNNING, FIRST, None)
    assert (await LocalRunner(tmp_path, {}).run(cleanup_command(instance))).ok
    assert not (tmp_path / ".shoal").exists()
