"""Cluster files: from the YAML that `ray up` reads to a typed, frozen `ClusterSpec`."""

from shoal.spec.hashes import files_hash, launch_hash, runtime_hash
from shoal.spec.loading import LoadedSpec, Overrides, default_embedded, load
from shoal.spec.model import (
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
from shoal.spec.problems import Problem, SpecError, SpecWarning
from shoal.spec.serial import from_json, to_json
from shoal.spec.source import YamlText

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
    "files_hash",
    "from_json",
    "launch_hash",
    "load",
    "runtime_hash",
    "to_json",
]
