"""Cluster files for node providers of other people, and for Ray's own on other clouds."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from shoal import spec as specs
from shoal.providers.external.class_loading import load_class
from shoal.spec import SpecError, provider_types
from tests.specs import cluster

from .conftest import loaded, problems


def ray_files() -> list[Path]:
    """The cluster files that Ray's wheel brings for other clouds."""
    found = importlib.util.find_spec("ray")
    if found is None or found.origin is None:
        return []
    root = Path(found.origin).parent / "autoscaler"
    return [p for name in ("azure", "vsphere") if (p := root / name / "defaults.yaml").exists()]


@pytest.mark.parametrize("path", ray_files(), ids=lambda path: path.parent.name)
def test_rays_files_for_other_clouds_load(path: Path) -> None:
    spec = specs.load(path).launchable()
    assert spec.provider.type == path.parent.name
    assert spec.head_node_type == "ray.head.default"


def test_settings_of_the_class_pass_through_untouched() -> None:
    spec = loaded(
        "provider: {type: external, module: mine.sub.Cloud, zone: b, nested: {x: [1, null]}}"
    ).spec
    assert spec.provider.settings == {
        "module": "mine.sub.Cloud",
        "zone": "b",
        "nested": {"x": [1, None]},
    }


def test_a_minimal_azure_file_has_rays_instances() -> None:
    """With only a location and a login, as in Ray's smallest example."""
    spec = loaded(
        "{max_workers: 1, provider: {type: azure, location: westus2}, "
        "auth: {ssh_user: ubuntu, ssh_private_key: ~/.ssh/k, ssh_public_key: ~/.ssh/k.pub}}"
    ).spec
    worker = spec.node_types["ray.worker.default"]
    assert spec.head.node_config["azure_arm_parameters"]["vmSize"] == "Standard_D2s_v3"
    assert worker.node_config["azure_arm_parameters"]["priority"] == "Spot"
    assert (worker.max_workers, worker.resources) == (1, {"CPU": 2.0})
    assert str(spec.auth.ssh_public_key).endswith("/.ssh/k.pub")


def test_the_legacy_form_of_an_azure_file_keeps_its_node_config() -> None:
    spec = loaded(
        "{provider: {type: azure, location: westus2, resource_group: g}, "
        "head_node: {azure_arm_parameters: {vmSize: A}}, "
        "worker_nodes: {azure_arm_parameters: {vmSize: B, priority: Spot}}, min_workers: 1}"
    ).spec
    sizes = [t.node_config["azure_arm_parameters"]["vmSize"] for t in spec.node_types.values()]
    assert sorted(sizes) == ["A", "B"]


def test_an_aliyun_file_with_empty_keys_loads() -> None:
    spec = loaded(
        "{provider: {type: aliyun, region: cn-hangzhou, access_key: , access_key_secret: }, "
        "auth: {ssh_user: root}, head_node: {}, worker_nodes: {}, "
        "available_node_types: {ray.head.default: {resources: {CPU: 2}, node_config: {}}, "
        "w: {resources: {CPU: 8}, min_workers: 1, node_config: {InstanceType: ecs.n4.large}}}, "
        "head_node_type: ray.head.default}"
    ).spec
    assert spec.provider.settings["access_key"] is None
    assert spec.node_types["w"].min_workers == 1


@pytest.mark.parametrize(
    ("name", "sdk"), [("aliyun", "aliyun-python-sdk-ecs"), ("azure", "azure-mgmt-compute")]
)
def test_a_missing_sdk_is_named(name: str, sdk: str) -> None:
    pytest.importorskip("ray")
    if importlib.util.find_spec("azure" if name == "azure" else "aliyunsdkcore") is not None:
        pytest.skip("the SDK is installed")
    from dataclasses import replace

    from shoal.core.errors import ConfigError
    from shoal.spec.cluster_spec import ProviderSpec

    with pytest.raises(ConfigError) as caught:
        load_class(replace(cluster(), provider=ProviderSpec(name, {})))
    assert caught.value.what == f"the SDK for provider type {name} is not installed"
    assert sdk in caught.value.fix


def test_a_type_that_a_package_brings_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SpecError, match="'cumulus' is not a known provider"):
        loaded("provider: {type: cumulus}")
    info = tmp_path / "cumulus-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cumulus\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[shoal.providers]\ncumulus = cumulus:Provider\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert loaded("provider: {type: cumulus, zone: a}").spec.provider.settings == {"zone": "a"}
    assert provider_types.plugin_types() == ["cumulus"]
    (line,) = problems("provider: {type: cumulos}")
    assert "did you mean 'cumulus'?" in line
