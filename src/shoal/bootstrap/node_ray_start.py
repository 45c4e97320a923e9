"""How Ray starts on a node, as data, derived from a cluster's spec and what its provider reports.
Runs nothing."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.core.addresses import bracketed, join_host_port
from shoal.providers.model import Instance, SharedMachine
from shoal.providers.protocol import Capabilities
from shoal.ray_runtime import cluster_secrets, ray_env, ray_start, start_commands
from shoal.ray_runtime.ray_start import HeadPorts, RayStart
from shoal.remote.runner import quote
from shoal.spec.cluster_spec import ClusterSpec, HostSpec

_DASHBOARD_PORT = 8265


def ray_start_for(
    capabilities: Capabilities, spec: ClusterSpec, instance: Instance, head: Instance
) -> RayStart:
    """How Ray starts on an instance of the cluster that `head` leads."""
    if capabilities.shared_machine is None:
        return _user_ray_start(spec, instance, head)
    machine, head_machine = map(capabilities.shared_machine, (instance, head))
    return _shared_ray_start(spec, instance, head, machine, head_machine)


def _user_ray_start(spec: ClusterSpec, instance: Instance, head: Instance) -> RayStart:
    """The spec's own start commands, adapted to a cluster that Shoal runs."""
    setup = spec.setup_for(instance.node_type, instance.role)
    env = _identity(spec, instance)
    # Start commands append a port to it.
    env["RAY_HEAD_IP"] = bracketed(head.address)
    if instance.role == "head":
        env.update(ray_start.head_env())
    programs = start_commands.ray_programs(setup.start_commands)
    return RayStart(
        commands=tuple(
            start_commands.adapt_start_command(c, instance.address) for c in setup.start_commands
        ),
        env=env,
        prelude=_prelude(spec),
        gcs_address=join_host_port(
            head.address, start_commands.gcs_port(spec.head_setup.start_commands)
        ),
        python=ray_start.RAY_PYTHON,
        find_python=ray_start.find_python_command(instance.id, programs),
        find_python_of_running=ray_start.find_python_command(instance.id, mode="ran"),
        find_python_for_session=ray_start.find_python_command(instance.id, programs, "session"),
        load_environment=ray_start.find_python_command(instance.id, programs, "environment"),
        dashboard_port=_DASHBOARD_PORT,
        shares_credentials=True,
    )


def _shared_ray_start(
    spec: ClusterSpec,
    instance: Instance,
    head: Instance,
    machine: SharedMachine,
    head_machine: SharedMachine,
) -> RayStart:
    """Shoal's own start command, for a node that shares this machine with others."""
    ports = HeadPorts(head_machine.ports.start)
    gcs_address = join_host_port(head.address, ports.gcs)
    directory = machine.ray_directory
    env: Mapping[str, str] = {}
    if instance.role == "head":
        argv, env = ray_start.shared_host_head_start(
            machine.python, instance.address, ports, directory
        )
    else:
        argv = ray_start.shared_host_worker_start(
            machine.python, instance.address, gcs_address, directory
        )
    memory = {"object_store_memory": float(ray_start.DEFAULT_OBJECT_STORE_BYTES)}
    return RayStart(
        commands=(quote(argv),),
        env={
            **_identity(spec, instance, memory),
            **ray_start.auth_env(spec.shoal.auth, head_machine.token_path),
            **env,
        },
        gcs_address=gcs_address,
        python=quote([machine.python]),
        dashboard_port=ports.dashboard,
        dashboard=f"http://{head.address}:{ports.dashboard}",
    )


def _identity(
    spec: ClusterSpec, instance: Instance, defaults: Mapping[str, float] | None = None
) -> dict[str, str]:
    # An instance whose node type is no longer in the spec can still be reached.
    node_type = spec.node_types.get(instance.node_type, spec.head)
    host = spec.shoal.hosts.get(instance.id, HostSpec())
    resources = {**(defaults or {}), **node_type.resources, **host.resources}
    labels = {**node_type.labels, **host.labels}
    env = ray_start.node_identity_env(instance.id, instance.node_type, resources, labels)
    return {**env, **ray_start.start_timeout_env()}


def _prelude(spec: ClusterSpec) -> str:
    authentication = ray_start.auth_prelude(spec.shoal.auth, cluster_secrets.TOKEN_PATH)
    if not spec.shoal.environment:
        return authentication
    return f"{authentication}\n{ray_env.source_command(spec.shoal.environment)}"
