"""Spot requests that outlive their machines. AWS calls them persistent, and starts another machine
for one that was ended: without our tags, so that nobody here would find it. They are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.core.errors import ConfigError
from shoal.providers.model import Finding
from shoal.spec.cluster_spec import ClusterSpec

_PLACE = ("InstanceMarketOptions", "SpotOptions")
_WHAT = "persistent spot requests bring back machines that were ended"
_WHY = "AWS starts another one for each, which down would not find, and so for ever"
_FIX = "take SpotOptions out, or leave only MaxPrice in it"


def findings(spec: ClusterSpec) -> list[Finding]:
    """The node types that ask for one, as far as the file itself tells."""
    return [
        Finding("error", _WHAT, _WHY, _FIX, ("node_types", name, "node_config", *_PLACE))
        for name, node_type in spec.node_types.items()
        if _is_persistent(node_type.node_config)
    ]


def refuse(configs: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise `ConfigError` when one of these configurations asks for one, be it by its launch
    template."""
    for name, config in configs.items():
        if _is_persistent(config):
            raise ConfigError(f"node type {name}: {_WHAT}", why=_WHY, fix=_FIX)


def _is_persistent(config: Mapping[str, Any]) -> bool:
    options = (config.get("InstanceMarketOptions") or {}).get("SpotOptions") or {}
    return options.get("SpotInstanceType") == "persistent"
