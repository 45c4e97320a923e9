"""Which machines of a list are taken into use, from what they say of themselves."""

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
from shoal.remote.runner import Completed, OnLine
from shoal.remote.ssh_runner import SshRunner
from shoal.spec.cluster_spec import ClusterSpec, ProviderSpec
from tests.specs import cluster

HEAD, FIRST, SECOND, THIRD = "192.0.2.10", "192.0.2.11", "192.0.2.12", "192.0.2.13"
ANOTHERS = "other@192.0.2.99 worker-1"


@dataclass
class Answering:
    """A machine that says whose it is."""

    claim: str

    async def open_connection(self, *, timeout: float) -> None:
        pass

    async def run(self, command: str, *, on_line: OnLine, **_: Any) -> Completed:
        if self.claim:
            on_line(self.claim, "stdout")
        return Completed(0)


class Rack(LocalProvider):
    """A head and three workers; of some it is known whose they are."""

    def __init__(self, home: Path, *, on_head: bool = False, **claims: str) -> None:
        super().__init__(rack(), home, SystemClock(), on_head=on_head)
        names = {FIRST: "first", SECOND: "second", THIRD: "third"}
        self._claims = {address: claims.get(name, "") for address, name in names.items()}

    def _runner(self, address: str) -> SshRunner:
        return cast(SshRunner, Answering(self._claims.get(address, "")))

    async def picked(self, count: int) -> list[str]:
        found = await self.launch(rack(), [LaunchRequest("head", "worker", count, "token")])
        return [instance.id for instance in found]


def rack() -> ClusterSpec:
    settings = {"head_ip": HEAD, "worker_ips": [FIRST, SECOND, THIRD]}
    return replace(cluster(name="mine"), provider=ProviderSpec("local", settings))


async def test_a_machine_of_another_cluster_is_the_last_to_be_asked(tmp_path: Path) -> None:
    assert await Rack(tmp_path, first=ANOTHERS).picked(2) == [SECOND, THIRD]
    assert await Rack(tmp_path, first=ANOTHERS).picked(3) == [SECOND, THIRD, FIRST]


async def test_a_machine_whose_claim_cannot_be_read_is_another_clusters(tmp_path: Path) -> None:
    assert await Rack(tmp_path, first="? ?").picked(1) == [SECOND]


async def test_the_controller_takes_what_is_free_and_no_machine_of_another_cluster(
    tmp_path: Path,
) -> None:
    busy = Rack(tmp_path, on_head=True, first=ANOTHERS, second=ANOTHERS)
    assert await busy.picked(2) == [THIRD]
    assert await busy.picked(1) == []


async def test_a_person_who_wants_more_than_there_are_is_told(tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match="4 more workers are needed, but only 3 hosts are free"):
        await Rack(tmp_path).picked(4)


def test_a_machine_of_another_cluster_says_nothing_of_all_of_its_type(tmp_path: Path) -> None:
    handle = ClusterHandle(Rack(tmp_path), rack())
    node_manager = ProviderNodeManager(handle, SystemClock(), lambda: None)
    assert not node_manager.blames_node_type(ClaimedError("it is another cluster's"))
    assert node_manager.blames_node_type(SetupError("it has no room for Ray"))


@pytest.mark.parametrize(("role", "stays"), [("worker", True), ("head", False)])
async def test_a_worker_that_is_let_go_leaves_the_files_of_a_head_in_the_same_home(
    tmp_path: Path, role: Role, stays: bool
) -> None:
    key = tmp_path / ".shoal" / "cluster_key"
    key.parent.mkdir()
    key.touch()
    instance = Instance(FIRST, "mine", "node", "t", role, State.RUNNING, FIRST, None)
    assert (await LocalRunner(tmp_path, {}).run(cleanup_command(instance))).ok
    assert key.exists() is stays


async def test_a_worker_that_is_let_go_keeps_nothing_of_its_own(tmp_path: Path) -> None:
    (tmp_path / ".shoal").mkdir()
    instance = Instance(FIRST, "mine", "node", "t", "worker", State.RUNNING, FIRST, None)
    assert (await LocalRunner(tmp_path, {}).run(cleanup_command(instance))).ok
    assert not (tmp_path / ".shoal").exists()
