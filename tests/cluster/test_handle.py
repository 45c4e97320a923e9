"""What the cluster handle does with each capability of a provider. Commands run on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.cluster.handle import ClusterHandle
from shoal.core.errors import IncompleteError, NotFoundError
from shoal.core.node_phase import Role
from shoal.providers import host_claims
from shoal.providers.host_claims import Claim
from shoal.providers.model import Instance, LaunchRequest, SharedMachine, State
from shoal.providers.protocol import Capabilities, Provider
from shoal.remote.local_runner import LocalRunner
from shoal.remote.runner import Runner
from shoal.spec.cluster_spec import ClusterSpec, HostSpec
from tests.specs import cluster


def instance(name: str) -> Instance:
    role: Role = "head" if name == "head" else "worker"
    return Instance(f"id-{name}", "c", name, role, role, State.RUNNING, f"10.0.0.{len(name)}", None)


HEAD, WORKER = instance("head"), instance("worker-1")


class Recorder(Provider):
    """A provider that records its calls; each instance is a directory."""

    def __init__(self, home: Path, instances: Sequence[Instance], **capabilities: object) -> None:
        self._home = home
        self._instances = instances
        self._capabilities = Capabilities(**capabilities)  # type: ignore[arg-type]
        self.calls: list[str] = []
        for each in instances:
            (home / each.id).mkdir()

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def launch(
        self, spec: ClusterSpec, requests: Sequence[LaunchRequest]
    ) -> Sequence[Instance]:
        return []

    async def list_instances(
        self, cluster: str | None = None, role: Role | None = None
    ) -> Sequence[Instance]:
        return [i for i in self._instances if role in (None, i.role)]

    async def stop(self, spec: ClusterSpec, instances: Sequence[Instance]) -> Sequence[str]:
        self.calls += [f"stop {i.name}" for i in instances]
        return ["a volume"]

    async def terminate(self, spec: ClusterSpec, instances: Sequence[Instance]) -> None:
        self.calls += [f"terminate {i.name}" for i in instances]

    def runner(self, spec: ClusterSpec, instance: Instance) -> Runner:
        home = self._home / instance.id
        return LocalRunner(home, {"HOME": str(home)})


@pytest.fixture
def handle(tmp_path: Path) -> Callable[..., tuple[ClusterHandle, Recorder]]:
    """Makes the handle of a cluster with a head and a worker, and its provider."""

    def make(*instances: Instance, **capabilities: object) -> tuple[ClusterHandle, Recorder]:
        provider = Recorder(tmp_path, instances or (HEAD, WORKER), **capabilities)
        return ClusterHandle(provider, cluster(name="c")), provider

    return make


Make = Callable[..., tuple[ClusterHandle, Recorder]]


async def test_stop_powers_instances_off_if_the_provider_can(handle: Make) -> None:
    one, provider = handle()
    assert await one.stop([WORKER]) == ["a volume"]
    assert provider.calls == ["stop worker-1"]


async def test_stop_only_ends_processes_if_the_provider_cannot_power_off(handle: Make) -> None:
    ended: list[str] = []

    async def end_processes(instances: Sequence[Instance]) -> None:
        ended.extend(i.name for i in instances)

    one, provider = handle(stops_instances=False, end_processes=end_processes)
    assert list(await one.stop([WORKER])) == []
    assert (ended, provider.calls) == (["worker-1"], [])


async def test_terminate_removes_the_cluster_from_hosts_that_stay(
    handle: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_file = tmp_path / "owner"
    monkeypatch.setattr("shoal.bootstrap.claims.CLAIM_FILE", str(claim_file))
    one, provider = handle(
        hosts=lambda: [HEAD, WORKER], claim=lambda i: Claim("c@10.0.0.4", i.name, i.id)
    )
    claim_file.write_text(f"{Claim('c@10.0.0.4', WORKER.name, WORKER.id)}\n")
    files = tmp_path / WORKER.id / ".shoal"
    files.mkdir()
    await one.terminate([WORKER])
    assert not files.exists()
    assert not claim_file.exists()
    assert provider.calls == ["terminate worker-1"]


async def test_terminate_keeps_what_another_cluster_has_on_a_host(
    handle: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_file = tmp_path / "owner"
    monkeypatch.setattr("shoal.bootstrap.claims.CLAIM_FILE", str(claim_file))
    one, _ = handle(hosts=lambda: [HEAD, WORKER], claim=lambda i: Claim("c@10.0.0.4", i.name, i.id))
    claim_file.write_text("other@10.9.9.9 worker-7\n")
    files = tmp_path / WORKER.id / ".shoal"
    files.mkdir()
    await one.terminate([WORKER])
    assert files.exists()
    assert host_claims.parse(claim_file.read_text()) == Claim("other@10.9.9.9", "worker-7")


async def test_a_host_that_cannot_be_cleaned_up_is_named(handle: Make, tmp_path: Path) -> None:
    one, provider = handle(hosts=lambda: [HEAD, WORKER])
    (tmp_path / WORKER.id / ".shoal").mkdir()
    (tmp_path / WORKER.id / ".shoal" / "container").write_text("no-such-runtime")
    with pytest.raises(IncompleteError, match="could not clean up on worker-1"):
        await one.terminate([WORKER])
    assert provider.calls == ["terminate worker-1"], "the provider forgets it anyway"


async def test_a_cluster_without_instances_is_not_up(handle: Make) -> None:
    one, _ = handle(instance("worker-1"))
    with pytest.raises(NotFoundError, match="cluster c is not up"):
        await one.head()
    assert await one.worker_addresses() == [WORKER.address]


def test_a_fixed_head_comes_with_a_command_that_checks_its_claim(handle: Make) -> None:
    one, _ = handle(fixed_head=HEAD, claim=lambda i: Claim("c@10.0.0.4", i.name, i.id))
    fixed = one.fixed_head("auto")
    assert fixed is not None
    head, check = fixed
    assert head == HEAD
    assert "c@10.0.0.4" in check


def test_without_a_fixed_head_only_a_listing_finds_the_head(handle: Make) -> None:
    one, _ = handle()
    assert one.fixed_head("auto") is None


def test_ray_on_its_own_host_starts_with_the_commands_of_the_file(handle: Make) -> None:
    one, _ = handle()
    start = one.ray_start(WORKER, HEAD)
    assert start.gcs_address == f"{HEAD.address}:6379"
    assert start.env["RAY_CLOUD_INSTANCE_ID"] == WORKER.id
    assert start.env["RAY_HEAD_IP"] == HEAD.address


def test_settings_of_a_host_override_those_of_its_node_type(handle: Make) -> None:
    one, provider = handle()
    hosts = {WORKER.id: HostSpec(resources={"GPU": 2.0}, labels={"rack": "b"})}
    spec = replace(one.spec, shoal=replace(one.spec.shoal, hosts=hosts))
    env = ClusterHandle(provider, spec).ray_start(WORKER, HEAD).env
    assert '"GPU": 2' in env["RAY_OVERRIDE_RESOURCES"]
    assert '"rack": "b"' in env["RAY_OVERRIDE_LABELS"]


def test_ray_on_a_shared_machine_uses_the_ports_and_the_token_of_its_head(handle: Make) -> None:
    def shared_machine(instance: Instance) -> SharedMachine:
        first = 20000 if instance.role == "head" else 0
        ports = range(first, first + 5)
        return SharedMachine("/py", f"/ray/{instance.id}", f"/token/{instance.id}", ports)

    one, _ = handle(shared_machine=shared_machine)
    start = one.ray_start(WORKER, HEAD)
    assert start.gcs_address == f"{HEAD.address}:20000"
    assert start.env["RAY_AUTH_TOKEN_PATH"] == f"/token/{HEAD.id}"
    assert f"--temp-dir=/ray/{WORKER.id}" in start.commands[0]
    assert one.files.mounts == {}, "the nodes see this machine's files"
