"""The commands that start the agents on a node, small shell programs that talk to the controller.

The lease agent shuts down a node that has lost its cluster: it polls the controller, which grants
a lease only while its loop turns, and runs the provider's command when the lease expires. The
controller keeps no list of leases; 1,000 workers are at most 1,000 short requests per minute.

The interruption agent posts the provider's interruption notices to the controller.

Both belong to the node's processes and end with its Ray. An agent that already runs is left alone.
Runs nothing itself.
"""

from __future__ import annotations

from shoal.core.addresses import split_host_port
from shoal.core.node_phase import Role
from shoal.ray_runtime.cluster_secrets import TOKEN_PATH
from shoal.remote.scripts import script_command

# The controller's port on the host of the head's GCS. It is fixed, so that workers know it before
# there is a controller and find a restarted one.
CONTROLLER_PORT = 6378

SCRIPTS = "shoal.bootstrap.scripts"
CONTROLLER_REQUEST = "controller_request.sh"

# How often the lease agent polls within one lease, and its longest pause in seconds.
_POLLS_PER_LEASE = 5
_MAX_PAUSE = 60

# Exists on a node whose cluster is not meant to have a controller.
_NO_CONTROLLER_FILE = ".shoal/no-controller"


def controller_host(gcs_address: str) -> str:
    """The host of the controller, from the GCS's HOST:PORT."""
    return split_host_port(gcs_address)[0]


def lease_agent_command(
    gcs_address: str,
    role: Role,
    lease_seconds: float,
    on_expired: str,
    *,
    controller_wait_seconds: float,
    has_controller: bool = True,
) -> str:
    """A command that starts the lease agent in the background. `on_expired` is the command that
    the agent runs when the lease expires. `has_controller` is whether the cluster is meant to have
    a controller, which may take `controller_wait_seconds` to start."""
    host, gcs_port = split_host_port(gcs_address)
    agent = script_command(
        SCRIPTS,
        "lease_agent.sh",
        host,
        str(CONTROLLER_PORT),
        gcs_port,
        role,
        str(round(lease_seconds)),
        on_expired,
        str(_POLLS_PER_LEASE),
        str(_MAX_PAUSE),
        str(round(controller_wait_seconds)),
        _NO_CONTROLLER_FILE,
        libraries=[CONTROLLER_REQUEST],
    )
    mark = f"rm -f {_NO_CONTROLLER_FILE}" if has_controller else no_controller_command()
    return f"{mark}\n{_in_background(agent)}"


def no_controller_command() -> str:
    """A command that makes a node, and its running lease agent, not wait for a controller: a
    reachable GCS then renews the lease."""
    return f"mkdir -p .shoal && : > {_NO_CONTROLLER_FILE}"


def interruption_agent_command(gcs_address: str, node_id: str, watch: str) -> str:
    """A command that starts the interruption agent in the background. `watch` is the provider's
    command that prints one notice per line."""
    agent = script_command(
        SCRIPTS,
        "interruption_agent.sh",
        controller_host(gcs_address),
        str(CONTROLLER_PORT),
        node_id,
        watch,
        TOKEN_PATH,
        libraries=[CONTROLLER_REQUEST],
    )
    return _in_background(agent)


def request_nodes_command(gcs_address: str) -> str:
    """A command for the head that prints Ray's nodes as the controller reports them, and fails if
    the controller does not answer."""
    return script_command(
        SCRIPTS,
        "request_nodes.sh",
        controller_host(gcs_address),
        str(CONTROLLER_PORT),
        TOKEN_PATH,
        libraries=[CONTROLLER_REQUEST],
    )


def _in_background(command: str) -> str:
    return f"setsid {command} < /dev/null > /dev/null 2>&1 &"
