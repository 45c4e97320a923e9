"""Which values `provider.type` may have: Shoal's own providers, those of installed packages and of
this process, and the ones that Ray brings for other clouds."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

SUPPORTED = ("aws", "gcp", "local", "external", "embedded")

# The entry point group of packages that bring a provider.
ENTRY_POINT_GROUP = "shoal.providers"

# Ray's own node providers that work unchanged, by the type that names them.
RAY_NODE_PROVIDERS: Mapping[str, str] = {
    "aliyun": "ray.autoscaler._private.aliyun.node_provider.AliyunNodeProvider",
    "azure": "ray.autoscaler._private._azure.node_provider.AzureNodeProvider",
    "vsphere": "ray.autoscaler._private.vsphere.node_provider.VsphereWcpNodeProvider",
}

# Other types that have been registered in this process.
_registered: set[str] = set()


def register_provider_type(name: str) -> None:
    """Accept another `provider.type`. The rest of such a file is checked as for `external`."""
    _registered.add(name)


def plugin(name: str) -> metadata.EntryPoint | None:
    """The entry point of an installed package that brings this provider."""
    return next(iter(metadata.entry_points(group=ENTRY_POINT_GROUP, name=name)), None)


def plugin_types() -> list[str]:
    """The provider types that installed packages bring."""
    return sorted({point.name for point in metadata.entry_points(group=ENTRY_POINT_GROUP)})


def is_known(name: str) -> bool:
    """Whether `provider.type` may be this."""
    return (
        name in SUPPORTED
        or name in _registered
        or name in RAY_NODE_PROVIDERS
        or plugin(name) is not None
    )
