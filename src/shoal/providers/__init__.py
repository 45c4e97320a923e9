"""Where machines come from. `provider_for` is the way in; each provider loads on demand."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from shoal.core.clock import Clock
from shoal.core.errors import ConfigError
from shoal.core.events import Emit, ignore_events
from shoal.providers.protocol import Provider
from shoal.spec.cluster_spec import ClusterSpec


def provider_for(
    spec: ClusterSpec,
    home: Path,
    clock: Clock,
    emit: Emit = ignore_events,
    *,
    on_head: bool = False,
) -> Provider:
    """The provider that a cluster's file names. `home` is where local state may be kept; `emit`
    hears of what a provider tries on its way; `on_head` says that this is the cluster's head."""
    if spec.provider.type == "embedded":
        return embedded_provider(home, clock)
    if spec.provider.type == "local":
        from shoal.providers.local.local_provider import LocalProvider

        return LocalProvider(spec, home, clock, on_head=on_head)
    if spec.provider.type == "aws":
        return _aws_provider(spec, home, clock, emit, on_head=on_head)
    raise ConfigError(
        f"provider {spec.provider.type!r} cannot be used yet",
        why="this version of Shoal runs clusters on AWS, on machines of your own and on this one",
        fix="set provider.type to embedded to rehearse the cluster on this machine",
    )


def embedded_provider(home: Path, clock: Clock) -> Provider:
    """The provider of machines in miniature on this one."""
    try:
        from shoal.providers.embedded.embedded_provider import EmbeddedProvider
    except ModuleNotFoundError as error:
        raise ConfigError(
            "embedded clusters are not installed",
            why=f"the Python package {error.name} is missing",
            fix="pip install 'shoal[embedded]'",
        ) from None
    return EmbeddedProvider(home / "e", clock)


def require_aws() -> None:
    """Raise `ConfigError` where what AWS is asked by is not installed."""
    if importlib.util.find_spec("boto3") is None:
        raise ConfigError(
            "clusters on AWS are not installed",
            why="the Python package boto3 is missing",
            fix="pip install 'shoal[aws]'",
        )


def _aws_provider(
    spec: ClusterSpec, home: Path, clock: Clock, emit: Emit, *, on_head: bool
) -> Provider:
    require_aws()
    from shoal.providers.aws.aws_provider import AwsProvider

    return AwsProvider(spec, home, clock, emit, on_head=on_head)
