"""The providers, by the `provider.type` that names them. Each is imported only when it is used."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shoal.core.clock import Clock
from shoal.core.errors import ConfigError
from shoal.providers.protocol import Provider
from shoal.spec.cluster_spec import ClusterSpec

if TYPE_CHECKING:  # slow to import, and a command that only runs another needs no events
    from shoal.core.events import Emit, Event


class ProviderFactory(Protocol):
    """Makes the provider of one cluster. `home` is a directory for local state; `emit` receives
    the events of launches; `on_head` is true for the controller's provider."""

    def __call__(
        self, spec: ClusterSpec, home: Path, clock: Clock, emit: Emit, *, on_head: bool
    ) -> Provider: ...


def provider_for(
    spec: ClusterSpec,
    home: Path,
    clock: Clock,
    emit: Emit | None = None,
    *,
    on_head: bool = False,
) -> Provider:
    """The provider that a spec names."""
    factory = _factories.get(spec.provider.type)
    if factory is None:
        raise ConfigError(
            f"provider type {spec.provider.type!r} is not supported yet",
            why=f"this version of Shoal supports {', '.join(_factories)}",
            fix="set provider.type to embedded to try the cluster on this machine",
        )
    return factory(spec, home, clock, emit or _ignore, on_head=on_head)


def _ignore(event: Event) -> None:
    """The receiver of events that are not needed."""


def register_provider(type_name: str, factory: ProviderFactory) -> None:
    """Make `provider.type: type_name` usable in this process."""
    from shoal.spec.validation import register_provider_type  # slow, and rarely needed

    register_provider_type(type_name)
    _factories[type_name] = factory


def embedded_provider(home: Path, clock: Clock) -> Provider:
    """The provider of instances on this machine, which needs no spec."""
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
    """Raise `ConfigError` if the AWS SDK is not installed."""
    if importlib.util.find_spec("boto3") is None:
        raise ConfigError(
            "clusters on AWS are not installed",
            why="the Python package boto3 is missing",
            fix="pip install 'shoal[aws]'",
        )


def _embedded(
    spec: ClusterSpec, home: Path, clock: Clock, emit: Emit, *, on_head: bool
) -> Provider:
    return embedded_provider(home, clock)


def _local(spec: ClusterSpec, home: Path, clock: Clock, emit: Emit, *, on_head: bool) -> Provider:
    from shoal.providers.local.local_provider import LocalProvider

    return LocalProvider(spec, home, clock, on_head=on_head)


def _aws(spec: ClusterSpec, home: Path, clock: Clock, emit: Emit, *, on_head: bool) -> Provider:
    require_aws()
    from shoal.providers.aws.aws_provider import AwsProvider

    return AwsProvider(spec, home, clock, emit, on_head=on_head)


_factories: dict[str, ProviderFactory] = {"aws": _aws, "local": _local, "embedded": _embedded}
