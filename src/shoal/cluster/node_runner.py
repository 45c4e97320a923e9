"""Where a node lives: on its machine, or in a container there."""

from __future__ import annotations

from shoal.providers.model import Instance
from shoal.providers.protocol import Provider
from shoal.remote.container import Container
from shoal.remote.runner import Runner
from shoal.spec.cluster_spec import ClusterSpec


def node_runner(provider: Provider, spec: ClusterSpec, instance: Instance) -> Runner:
    """The way to run things where a node's Ray and its user's commands run. What is about the
    machine itself goes by `provider.runner`."""
    machine = provider.runner(spec, instance)
    container = spec.container_for(instance.node_type, instance.role)
    if container is None:
        return machine
    return machine.in_container(Container(container.engine, container.name))
