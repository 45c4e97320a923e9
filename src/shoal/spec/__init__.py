"""Cluster files: turns the YAML that `ray up` reads into a typed, frozen `ClusterSpec`.

Must not run commands, nor know anything about Ray or a provider beyond their cluster files.
"""

from typing import TYPE_CHECKING, Any

from shoal.spec.cluster_spec import (
    AuthSpec,
    ClusterSpec,
    ContainerSpec,
    FilesSpec,
    NodeSetup,
    NodeType,
    ProviderSpec,
    ScalingSpec,
    ShoalSettings,
)
from shoal.spec.serialization import from_json, to_json

if TYPE_CHECKING:
    from shoal.spec.hashes import launch_hash
    from shoal.spec.loading import LoadedSpec, Overrides, default_embedded, load
    from shoal.spec.problems import Problem, SpecError, SpecWarning
    from shoal.spec.yaml_source import YamlText

__all__ = [
    "AuthSpec",
    "ClusterSpec",
    "ContainerSpec",
    "FilesSpec",
    "LoadedSpec",
    "NodeSetup",
    "NodeType",
    "Overrides",
    "Problem",
    "ProviderSpec",
    "ScalingSpec",
    "ShoalSettings",
    "SpecError",
    "SpecWarning",
    "YamlText",
    "default_embedded",
    "from_json",
    "launch_hash",
    "load",
    "to_json",
]

# Imported on first use: commands for a running cluster read no file and start faster.
_LAZY = {
    "hashes": ("launch_hash",),
    "loading": ("LoadedSpec", "Overrides", "default_embedded", "load"),
    "problems": ("Problem", "SpecError", "SpecWarning"),
    "yaml_source": ("YamlText",),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for module, names in _LAZY.items():
        if name in names:
            return getattr(import_module(f"shoal.spec.{module}"), name)
    raise AttributeError(f"module 'shoal.spec' has no attribute {name!r}")
