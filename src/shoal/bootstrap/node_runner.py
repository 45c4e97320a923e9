"""Runs commands where a node's Ray runs: in its container if it has one, on its host otherwise."""

from __future__ import annotations

from shoal.providers.model import Instance
from shoal.providers.protocol import Provider
from shoal.remote.container import Container
from shoal.remote.runner import Runner
from shoal.spec.cluster_spec import ClusterSpec


def node_runner(provider: Provider, spec: ClusterSpec, instance: Instance) -> Runner:
    """The runner for a node's Ray and the user's commands. `provider.runner` is for the host."""
    host = provider.runner(spec, instance)
    container = spec.container_for(instance.node_type, instance.role)
    if container is None:
        return host
    return host.in_container(Container(container.runtime, container.name))
