"""Where machines come from. `provider_for` is the way in; each provider loads on demand."""

from __future__ import annotations

from pathlib import Path

from shoal.clock import Clock
from shoal.errors import ConfigError
from shoal.providers.base import Provider
from shoal.spec.model import ClusterSpec


def provider_for(spec: ClusterSpec, home: Path, clock: Clock) -> Provider:
    """The provider that a cluster's file names. `home` is where local state may be kept."""
    if spec.provider.type == "embedded":
        return embedded_provider(home, clock)
    if spec.provider.type == "local":
        from shoal.providers.hosts.provider import HostsProvider

        return HostsProvider(spec, home, clock)
    raise ConfigError(
        f"provider {spec.provider.type!r} cannot be used yet",
        why="this version of Shoal runs clusters on this machine and on machines of your own",
        fix="set provider.type to embedded to rehearse the cluster on this machine",
    )


def embedded_provider(home: Path, clock: Clock) -> Provider:
    """The provider of machines in miniature on this one."""
    try:
        from shoal.providers.embedded.provider import EmbeddedProvider
    except ModuleNotFoundError as error:
        raise ConfigError(
            "embedded clusters are not installed",
            why=f"the Python package {error.name} is missing",
            fix="pip install 'shoal[embedded]'",
        ) from None
    return EmbeddedProvider(home / "e", clock)
