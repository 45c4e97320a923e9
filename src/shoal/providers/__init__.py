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
    from importlib import metadata

    from shoal.core.events import Emit, Event
    from shoal.providers.provider_code import ProviderCode


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
    factory = factory_for(spec.provider.type)
    return factory(spec, home, clock, emit or _ignore, on_head=on_head)


def factory_for(type_name: str) -> ProviderFactory:
    """What makes the providers of this type: Shoal, this process, or an installed package."""
    if factory := _factories.get(type_name):
        return factory
    from shoal.spec import provider_types  # slow, and rarely needed

    if type_name in provider_types.RAY_NODE_PROVIDERS:
        return _external
    point = provider_types.plugin(type_name)
    if point is None:
        raise ConfigError(
            f"provider type {type_name!r} is not supported yet",
            why=f"this version of Shoal supports {', '.join(_factories)}",
            fix="install the package that brings it\n"
            "or try the cluster on this machine: set provider.type to embedded",
        )
    try:
        plugin: ProviderFactory = point.load()
    except Exception as error:  # whatever the package raises while it is imported
        raise ConfigError(
            f"cannot load the provider {type_name!r}",
            why=f"{point.value} of {_package_name(point)}: {type(error).__name__}: {error}",
            fix="install the package again, with what it needs",
        ) from error
    return plugin


def code_for_head(spec: ClusterSpec) -> ProviderCode:
    """The code that a head needs to make this spec's provider, besides Shoal."""
    from shoal.providers import provider_code
    from shoal.spec import provider_types

    type_name = spec.provider.type
    if type_name in _BUILT_IN or type_name in provider_types.RAY_NODE_PROVIDERS:
        return provider_code.ProviderCode()
    if type_name == "external":
        module = str(spec.provider.settings["module"]).rpartition(".")[0]
        return provider_code.code_of(module, spec.shoal.provider_path)
    factory = factory_for(type_name)
    value = f"{factory.__module__}:{getattr(factory, '__qualname__', '')}"
    return provider_code.code_of(factory.__module__).with_entry_point(type_name, value)


def _package_name(point: metadata.EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an installed package"


def _ignore(event: Event) -> None:
    """The receiver of events that are not needed."""


def register_provider(type_name: str, factory: ProviderFactory) -> None:
    """Make `provider.type: type_name` usable in this process."""
    from shoal.spec.provider_types import register_provider_type  # slow, and rarely needed

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


def require_gcp() -> None:
    """Raise `ConfigError` if Google's authentication library is not installed."""
    for module, package in (("google.auth", "google-auth"), ("requests", "requests")):
        try:
            found = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:  # the namespace package is missing too
            found = False
        if not found:
            raise ConfigError(
                "clusters on GCP are not installed",
                why=f"the Python package {package} is missing",
                fix="pip install 'shoal[gcp]'",
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


def _gcp(spec: ClusterSpec, home: Path, clock: Clock, emit: Emit, *, on_head: bool) -> Provider:
    require_gcp()
    from shoal.providers.gcp.gcp_provider import GcpProvider

    return GcpProvider(spec, home, clock, emit, on_head=on_head)


def _external(
    spec: ClusterSpec, home: Path, clock: Clock, emit: Emit, *, on_head: bool
) -> Provider:
    from shoal.providers.external.external_provider import ExternalProvider

    return ExternalProvider(spec, home, clock, emit, on_head=on_head)


_factories: dict[str, ProviderFactory] = {
    "aws": _aws,
    "gcp": _gcp,
    "local": _local,
    "embedded": _embedded,
    "external": _external,
}
_BUILT_IN = frozenset(_factories) - {"external"}
