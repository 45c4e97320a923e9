"""Ray's own cluster file templates."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.spec import SpecError, load

from .conftest import SHARED, loaded
from .test_config_report import printed

RAY_YAML = SHARED / "ray-yaml"
FILES = sorted(RAY_YAML.glob("*/*.yaml"))

pytestmark = pytest.mark.skipif(not FILES, reason="Ray's cluster files are not available")


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_ray_template_loads(path: Path) -> None:
    spec = load(path).spec
    assert spec.head.name == spec.head_node_type
    assert spec.provider.type in (path.parent.name, "embedded")


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_config_prints_for_a_ray_template_loads_as_the_same_spec(path: Path) -> None:
    first = load(path)
    assert loaded(printed(first)).spec == first.spec


def test_the_head_node_type_of_a_minimal_file_is_inferred() -> None:
    spec = load(RAY_YAML / "aws" / "example-minimal.yaml").spec
    assert spec.head_node_type == "ray.head.default"
    assert spec.node_types["ray.worker.default"].min_workers == 3
    assert spec.head.max_workers == 0


def test_a_head_node_type_can_also_have_workers() -> None:
    spec = load(RAY_YAML / "aws" / "example-multi-node-type.yaml").spec
    assert (spec.head.min_workers, spec.head.max_workers) == (1, 5)
    gpu = spec.node_types["gpu_8_ondemand"]
    assert gpu.setup.setup_commands == ("pip install tensorflow-gpu",)
    assert gpu.idle_timeout_s == 120


def test_the_image_of_a_node_type_is_for_workers_only() -> None:
    spec = load(RAY_YAML / "aws" / "example-gpu-docker.yaml").spec
    worker = spec.node_types["ray.worker.default"].setup.container
    assert spec.head_setup.container is not None
    assert worker is not None
    assert spec.head_setup.container.image == "rayproject/ray-ml:latest-gpu"
    assert worker.image == "rayproject/ray-ml:latest-cpu"
    assert worker.name == "ray_nvidia_docker"


def test_an_empty_image_means_no_container() -> None:
    spec = load(RAY_YAML / "aws" / "example-ml.yaml").spec
    assert spec.head_setup.container is None


def test_placeholders_of_the_local_template_are_ignored() -> None:
    loaded = load(RAY_YAML / "local" / "example-full.yaml")
    (node_type,) = loaded.spec.node_types.values()
    hosts = ["WORKER_NODE_1_HOSTNAME", "WORKER_NODE_2_HOSTNAME"]
    assert loaded.spec.provider.settings["worker_ips"] == hosts
    assert (node_type.min_workers, node_type.max_workers) == (2, 2)
    assert {"min_workers", "max_workers"} <= {warning.path[-1] for warning in loaded.warnings}


def test_a_file_with_a_coordinator_loads_but_is_not_launchable() -> None:
    loaded = load(RAY_YAML / "local" / "example-minimal-automatic.yaml")
    assert loaded.spec.scaling.max_workers == 2
    with pytest.raises(SpecError, match="coordinator_address  coordinator"):
        loaded.launchable()
