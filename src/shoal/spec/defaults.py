"""Default values of a cluster file. They follow Ray's defaults for each provider, except where
those no longer work (a nightly wheel for one Python version, Ray's own autoscaler)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from shoal.spec.spec_draft import DEFAULT, Draft, Origin

CONTAINER_NAME = "ray_container"

# The names of head types in Ray's templates: files without a `head_node_type` rely on them.
_TEMPLATE_HEADS = ("ray.head.default", "ray_head_default", "head")

_COMMON: dict[str, Any] = {
    "cluster_name": "default",
    "upscaling_speed": 1.0,
    "idle_timeout_minutes": 5.0,
    "auth": {},
    "docker": {},
    "file_mounts": {},
    "cluster_synced_files": [],
    "file_mounts_sync_continuously": False,
    "rsync_exclude": [],
    "rsync_filter": [],
    "initialization_commands": [],
    "setup_commands": [],
    "head_setup_commands": [],
    "worker_setup_commands": [],
    "no_restart": False,
    "metadata": {},
    "shoal": {},
}


def _conda_on_path(directory: str) -> str:
    """Deep learning images do not have their Python on the PATH of a login shell."""
    return (
        f"(stat {directory} &> /dev/null && "
        f"echo 'export PATH=\"{directory}:$PATH\"' >> ~/.bashrc) || true"
    )


def _start_ray(prelude: str, options: str = "", head_options: str = "") -> dict[str, list[str]]:
    return {
        "head_start_ray_commands": [
            "ray stop",
            f"{prelude}ray start --head --port=6379{options}{head_options}",
        ],
        "worker_start_ray_commands": [
            "ray stop",
            f"{prelude}ray start --address=$RAY_HEAD_IP:6379{options}",
        ],
    }


_CLOUD_START = _start_ray(
    "ulimit -n 65536; ", " --object-manager-port=8076", " --dashboard-host=0.0.0.0"
)


def _gcp_node_type(**node_config: Any) -> dict[str, Any]:
    image = "projects/deeplearning-platform-release/global/images/family/common-cpu"
    disk = {
        "boot": True,
        "autoDelete": True,
        "type": "PERSISTENT",
        "initializeParams": {"diskSizeGb": 50, "sourceImage": image},
    }
    return {
        "resources": {"CPU": 2.0},
        "node_config": {"machineType": "n1-standard-2", "disks": [disk], **node_config},
    }


def _azure_node_type(**parameters: Any) -> dict[str, Any]:
    image = {
        "imagePublisher": "microsoft-dsvm",
        "imageOffer": "ubuntu-2204",
        "imageSku": "2204-gen2",
        "imageVersion": "latest",
    }
    size = {"vmSize": "Standard_D2s_v3"}
    return {
        "resources": {"CPU": 2.0},
        "node_config": {"azure_arm_parameters": {**size, **image, **parameters}},
    }


_BY_PROVIDER: dict[str, dict[str, Any]] = {
    "aws": {
        "max_workers": 2,
        "available_node_types": {
            "ray.head.default": {
                "node_config": {
                    "InstanceType": "m5.large",
                    "BlockDeviceMappings": [
                        {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 256}}
                    ],
                }
            },
            "ray.worker.default": {
                "node_config": {
                    "InstanceType": "m5.large",
                    "InstanceMarketOptions": {"MarketType": "spot"},
                }
            },
        },
        "head_node_type": "ray.head.default",
        "setup_commands": [_conda_on_path("$HOME/anaconda3/envs/tensorflow2_p310/bin")],
        "head_setup_commands": ["python3 -c 'import boto3' || pip install 'boto3>=1.34'"],
        **_CLOUD_START,
    },
    "gcp": {
        "max_workers": 2,
        "available_node_types": {
            "ray_head_default": _gcp_node_type(),
            "ray_worker_small": _gcp_node_type(scheduling=[{"preemptible": True}]),
        },
        "head_node_type": "ray_head_default",
        "setup_commands": [_conda_on_path("/opt/conda/bin")],
        "head_setup_commands": ["pip install 'google-auth>=2.25' 'requests>=2.31'"],
        **_CLOUD_START,
    },
    "local": _start_ray("ulimit -c unlimited; "),
    "external": {
        "max_workers": 2,
        "available_node_types": {"ray.head.default": {}, "ray.worker.default": {}},
        "head_node_type": "ray.head.default",
        **_CLOUD_START,
    },
    "azure": {
        "max_workers": 2,
        "available_node_types": {
            "ray.head.default": _azure_node_type(),
            "ray.worker.default": _azure_node_type(priority="Spot"),
        },
        "head_node_type": "ray.head.default",
        "setup_commands": [_conda_on_path("/anaconda/bin")],
        "head_setup_commands": [
            "pip install azure-cli-core azure-identity azure-mgmt-compute azure-mgmt-network "
            "'azure-mgmt-resource<25' azure-common msrestazure"
        ],
        **_CLOUD_START,
    },
    "embedded": {
        "max_workers": 4,
        "available_node_types": {
            "head": {"resources": {"CPU": 1.0}},
            "worker": {"resources": {"CPU": 1.0}, "min_workers": 2},
        },
        "head_node_type": "head",
        # The embedded provider starts its nodes itself, each with its own address.
        "head_start_ray_commands": [],
        "worker_start_ray_commands": [],
    },
}


def rules_for(provider: str) -> str:
    """Whose defaults apply to a file with this provider: an unknown one is checked as external."""
    return provider if provider in _BY_PROVIDER else "external"


def default_for(provider: str) -> Origin:
    """The origin of a provider's default values."""
    return Origin("default", f"for {provider}")


def default_node_types(provider: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The default head and worker node types."""
    defaults = copy.deepcopy(_BY_PROVIDER[provider])
    types = defaults["available_node_types"]
    head = types.pop(defaults["head_node_type"])
    (worker,) = types.values()
    return head, worker


def infer_head_node_type(draft: Draft, provider: str) -> None:
    """If the file has node types but no `head_node_type`, use the type that is named like the
    head in Ray's templates."""
    types = draft.get("available_node_types", default={})
    names = (_BY_PROVIDER[provider].get("head_node_type"), *_TEMPLATE_HEADS)
    head = next((name for name in names if name in types), None)
    if head is not None:
        draft.put_missing(("head_node_type",), head, default_for(provider))


def apply(draft: Draft, provider: str, install_ray: Callable[[], str] | None = None) -> None:
    """Set every key that the file leaves out. As in Ray, a list or mapping in the file replaces
    the default as a whole. `install_ray` returns the command that installs Ray on an instance."""
    provider_defaults = copy.deepcopy(_BY_PROVIDER[provider])
    if draft.has("available_node_types"):
        provider_defaults.pop("head_node_type", None)
    # Only clouds have default setup commands: local hosts are expected to have Ray.
    uses_default_setup = "setup_commands" in provider_defaults and not draft.has("setup_commands")
    if uses_default_setup and install_ray is not None:
        provider_defaults["setup_commands"].append(install_ray())
    for key, value in provider_defaults.items():
        draft.put_missing((key,), value, default_for(provider))
    for key, value in copy.deepcopy(_COMMON).items():
        draft.put_missing((key,), value, DEFAULT)
    _fit_to_max_workers(draft, provider)


def _fit_to_max_workers(draft: Draft, provider: str) -> None:
    """Lower the default `min_workers` to the `max_workers` of the file."""
    limit = draft.get("max_workers")
    for name in draft.get("available_node_types", default={}):
        path = ("available_node_types", name, "min_workers")
        if draft.origin(*path).kind == "default" and draft.get(*path, default=0) > limit:
            draft.put(path, limit, default_for(provider))
