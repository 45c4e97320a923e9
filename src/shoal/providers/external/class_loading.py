"""Finds the class that a cluster file names. Classes are loaded by name, because they bring Ray and
the SDK of their cloud with them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from shoal.core.errors import ConfigError
from shoal.providers.provider_code import add_to_path
from shoal.spec.cluster_spec import ClusterSpec
from shoal.spec.provider_types import RAY_NODE_PROVIDERS

# What to install for Ray's own classes.
_SDKS: Mapping[str, str] = {
    "aliyun": "aliyun-python-sdk-core aliyun-python-sdk-ecs",
    "azure": "azure-cli-core azure-identity azure-mgmt-compute azure-mgmt-network "
    "'azure-mgmt-resource<25' azure-common msrestazure",
    "vsphere": "kubernetes",
}

# What the adapter calls.
_METHODS = ("non_terminated_nodes", "is_running", "node_tags", "internal_ip", "terminate_node")


def class_path(spec: ClusterSpec) -> str:
    """The class that a spec names, as `package.Class`."""
    named = RAY_NODE_PROVIDERS.get(spec.provider.type)
    return named or str(spec.provider.settings["module"])


def load_class(spec: ClusterSpec) -> type[Any]:
    """The class that a spec names. Raises `ConfigError` with what is missing."""
    add_to_path(spec.shoal.provider_path)
    path = class_path(spec)
    module, _, name = path.rpartition(".")
    try:
        loaded = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise _not_importable(spec, path, module, error) from error
    except AttributeError:
        raise ConfigError(
            f"{module} has no class {name}",
            why=f"provider.module is {path}",
            fix="name the class as package.Class or package.module.Class",
        ) from None
    except Exception as error:  # whatever the module raises while it is imported
        raise ConfigError(
            f"cannot import {module}",
            why=f"{type(error).__name__}: {error}",
            fix="correct the module, and what it needs",
        ) from error
    lacking = [method for method in _METHODS if not hasattr(loaded, method)]
    if not isinstance(loaded, type) or lacking:
        raise ConfigError(
            f"{path} is not a node provider",
            why=f"it has no {', '.join(lacking)}" if lacking else "it is not a class",
            fix="name a class that implements ray.autoscaler.node_provider.NodeProvider",
        )
    return loaded


def _not_importable(spec: ClusterSpec, path: str, module: str, error: ImportError) -> ConfigError:
    name = error.name or ""
    is_missing = isinstance(error, ModuleNotFoundError)
    if is_missing and name == "ray":
        return ConfigError(
            "Ray is not installed in this Python",
            why=f"{path} is a class of Ray's node provider API",
            fix="pip install 'ray[default]'",
        )
    if spec.provider.type in _SDKS:
        problem = "is not installed" if is_missing else "is not the version that Ray needs"
        return ConfigError(
            f"the SDK for provider type {spec.provider.type} {problem}",
            why=f"Ray's {path.rpartition('.')[2]}: {error}",
            fix=f"pip install {_SDKS[spec.provider.type]}\n"
            "add the same to head_setup_commands in the file",
        )
    if is_missing and (name == module or module.startswith(f"{name}.")):
        return ConfigError(
            f"cannot find the Python module {name}",
            why=f"provider.module is {path}",
            fix="install its package, or name its directory in the file: "
            "shoal: {provider_path: DIRECTORY}",
        )
    return ConfigError(
        f"cannot import {module}",
        why=str(error),
        fix="install what it needs, with pip, in the environment of shoal",
    )
