"""`ray-vast` from PyPI, unchanged, against a stand-in of the API of vast.ai. It launches workers
only, its constructor terminates all that it finds, and its nodes have no address before they
join."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.core.clock import SystemClock
from shoal.core.errors import CapacityError, QuotaError
from shoal.providers import code_for_head
from shoal.providers.external import external_provider
from shoal.providers.external.external_provider import ExternalProvider
from shoal.providers.model import LaunchRequest, State
from shoal.spec.cluster_spec import ClusterSpec, ProviderSpec
from tests.providers.external.vast_api import ACCOUNT_KEY, VastApi
from tests.specs import cluster

pki = pytest.importorskip("ray_vast.pki")
boto3 = pytest.importorskip("boto3")
moto = pytest.importorskip("moto")

WORKERS = LaunchRequest("worker", "worker", 2, "t-1")


@pytest.fixture
async def vast() -> AsyncIterator[VastApi]:
    vast = VastApi()
    runner = await vast.open("127.0.0.1", 0)
    yield vast
    await runner.cleanup()


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("secrets")
    pki.write_head_files(directory, "127.0.0.1")
    (directory / "vast_api_key").write_text(ACCOUNT_KEY)
    return directory


@pytest.fixture
def spec(vast: VastApi, secrets: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterSpec]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with moto.mock_aws(config={"core": {"passthrough": {"urls": ["127.0.0.1"]}}}):
        ec2 = boto3.client("ec2", region_name="us-west-2")
        (group,) = ec2.describe_security_groups(GroupNames=["default"])["SecurityGroups"]
        settings = {
            "module": "ray_vast.provider.VastNodeProvider",
            "disable_node_updaters": True,
            "head_ip": "127.0.0.1",
            "secrets_dir": str(secrets),
            "security_group_ids": [group["GroupId"]],
            "region": "us-west-2",
            "image": "ray",
            "max_dollars_per_hour": 3.0,
            "vast_api_url": vast.url,
            "port_a": free_port(),
            "port_b": free_port(),
        }
        base = cluster(name="mine")
        types = {
            name: replace(t, node_config={"offer_query": {}, "disk_gb": 10}, resources={"CPU": 4.0})
            for name, t in base.node_types.items()
        }
        yield replace(base, provider=ProviderSpec("external", settings), node_types=types)
        for drivers in external_provider._drivers.values():  # it has threads of its own
            while drivers:
                drivers.popitem()[1][1].close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def controllers_provider(spec: ClusterSpec, directory: Path) -> ExternalProvider:
    return ExternalProvider(spec, directory, SystemClock(), lambda _: None, on_head=True)


async def test_workers_on_vast_are_launched_listed_and_terminated(
    spec: ClusterSpec, vast: VastApi, tmp_path: Path
) -> None:
    vast.instances[1] = {"id": 1, "label": "ray-vast:mine"}  # left by an earlier head
    vast.instances[2] = {"id": 2, "label": "somebody else's"}
    provider = controllers_provider(spec, tmp_path)
    assert provider.capabilities.workers_start_ray
    assert await provider.list_instances(role="worker") == []
    assert list(vast.instances) == [2], "its constructor sweeps"

    launched = await provider.launch(spec, [WORKERS])
    assert [(i.role, i.node_type, i.address) for i in launched] == [("worker", "worker", "")] * 2
    assert len(vast.instances) == 5, "it rents twice as many as it needs"
    repeated = await controllers_provider(spec, tmp_path).launch(spec, [WORKERS])
    assert [i.id for i in repeated] == [i.id for i in launched]
    listed = await provider.list_instances(role="worker")
    assert {i.state for i in listed} == {State.PENDING}, "none has joined yet"

    await provider.terminate(spec, launched)
    assert await provider.list_instances(role="worker") == []
    assert list(vast.instances) == [2]


async def test_refusals_of_vast_have_their_class(
    spec: ClusterSpec, vast: VastApi, tmp_path: Path
) -> None:
    provider = controllers_provider(spec, tmp_path)
    vast.offers = 0
    with pytest.raises(CapacityError, match="no rentable offer"):
        await provider.launch(spec, [WORKERS])
    vast.offers = 10
    many = replace(WORKERS, count=3, token="t-2")
    await provider.launch(spec, [many])
    with pytest.raises(QuotaError, match="max_dollars_per_hour"):
        await provider.launch(spec, [replace(WORKERS, count=9, token="t-3")])


@pytest.mark.processes
async def test_a_laptop_never_constructs_the_class(
    spec: ClusterSpec, vast: VastApi, tmp_path: Path
) -> None:
    """The constructor would terminate the workers of a running cluster."""
    vast.instances[1] = {"id": 1, "label": "ray-vast:mine"}
    laptop = ExternalProvider(spec, tmp_path, SystemClock(), lambda _: None, on_head=False)
    assert await laptop.list_instances(role="worker") == []
    findings = await laptop.preflight(replace(spec, shoal=replace(spec.shoal, auth="none")))
    assert [(f.severity, f.what) for f in findings if f.check == "external-class"] == [
        ("warning", "a restart of the controller replaces all workers")
    ]
    assert "error" not in [f.severity for f in findings]
    (head,) = await laptop.launch(spec, [LaunchRequest("head", "head", 1, "h")])
    assert (head.id, head.role) == ("127.0.0.1", "head")
    assert list(vast.instances) == [1]


def test_the_head_installs_the_same_version(spec: ClusterSpec) -> None:
    (requirement,) = code_for_head(spec).requirements
    name, _, version = requirement.partition("==")
    assert name == "ray-vast" and version
