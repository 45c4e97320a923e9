"""How Ray is started on a node: commands, arguments and environment, as data. Runs nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from shoal.core.addresses import split_host_port
from shoal.remote.runner import quote
from shoal.remote.scripts import script_command
from shoal.spec.cluster_spec import AuthMode

# Shell text that names the interpreter which `find_python_command` found.
RAY_PYTHON = '"$SHOAL_RAY_PYTHON"'

# A head that shares its host needs this many consecutive ports.
HEAD_PORTS = 5
DEFAULT_OBJECT_STORE_BYTES = 200_000_000

# A process with this environment variable is a user's session of the cluster with that address.
IN_USE_VARIABLE = "SHOAL_IN_USE"

# What `ray start` prints if its raylet has not registered within 30 s. On a busy machine the raylet
# ends by itself if its agents need more than 15 s (Ray 2.54 and newer); the next one is faster.
_STARTUP_TIMEOUT = "The current node timed out during startup"


@dataclass(frozen=True)
class RayStart:
    """How Ray is started on one node: shell commands, their environment, and the address of the
    cluster's GCS.

    `prelude` is shell text that goes before every command that uses Ray. `python` is shell text
    that names the interpreter that Ray runs with, after `find_python`, or after `load_environment`,
    which also loads the environment that Ray runs in, or after `find_python_of_running`, which
    fails if no Ray ran there; `find_python_for_session` is silent about that. `dashboard` is the
    URL of the dashboard if a browser on this machine can open it directly. With
    `shares_credentials`, bootstrap copies the head's token and key to the workers; otherwise the
    provider has done that.
    """

    commands: tuple[str, ...]
    env: Mapping[str, str]
    gcs_address: str
    python: str
    dashboard_port: int
    dashboard: str = ""
    prelude: str = ""
    find_python: str = ""
    load_environment: str = ""
    find_python_of_running: str = ""
    find_python_for_session: str = ""
    shares_credentials: bool = False

    def with_prelude(self, command: str) -> str:
        """A start or setup command, which finds Ray by itself."""
        return _lines(self.prelude, command)

    def with_python(self, command: str) -> str:
        """A command that uses `python`. It needs nothing from the user's dotfiles."""
        return _lines(self.prelude, self.find_python, command)

    def with_running(self, command: str) -> str:
        """A command that uses `python` to ask the running Ray."""
        return _lines(self.prelude, self.find_python_of_running, command)

    def with_environment(self, command: str) -> str:
        """A command that uses `python`, in the environment that Ray runs in: what dotfiles and
        start commands have set, such as proxies and cloud profiles, without reading them again."""
        return _lines(self.load_environment, self.prelude, command)

    def with_session(self, command: str) -> str:
        """A user's command. Where the login shell has no `ray`, the cluster's own is on the PATH,
        with its Python."""
        if not self.find_python_for_session:
            return self.with_prelude(command)
        add = 'PATH="${SHOAL_RAY_BIN:+$SHOAL_RAY_BIN:}$PATH"'
        find = f"{self.find_python_for_session}; {add}"
        return _lines(self.prelude, f"command -v ray >/dev/null 2>&1 || {{ {find}; }}", command)

    def driver_env(self) -> dict[str, str]:
        """The environment, besides the prelude, with which `ray.init()` on the head finds this
        cluster."""
        inherited = {k: v for k, v in self.env.items() if k.startswith("RAY_AUTH_")}
        return {"RAY_ADDRESS": self.gcs_address, **inherited}

    def session_env(self) -> dict[str, str]:
        """The driver's environment for a user's command, which marks the cluster as in use while
        it runs."""
        return {**self.driver_env(), IN_USE_VARIABLE: self.gcs_address}


@dataclass(frozen=True)
class HeadPorts:
    """The ports of a head that shares its host with other heads."""

    base: int

    @property
    def gcs(self) -> int:
        return self.base

    @property
    def dashboard(self) -> int:
        return self.base + 1

    @property
    def client(self) -> int:
        return self.base + 2

    @property
    def agent(self) -> int:
        return self.base + 3

    @property
    def metrics(self) -> int:
        return self.base + 4


def _lines(*parts: str) -> str:
    return "\n".join(part for part in parts if part)


def find_python_command(
    instance_id: str,
    ray_programs: Sequence[str] = (),
    mode: Literal["python", "session", "environment", "ran"] = "python",
) -> str:
    """Shell text that sets SHOAL_RAY_PYTHON to the interpreter that a node's Ray runs with, and
    the variables that this needs, or all that Ray has. `ray_programs` are paths that are tried if
    no Ray runs there; with `ran`, only a Ray that runs or ran counts; with `session`, it is no
    error that there is none."""
    find = script_command(
        "shoal.ray_runtime.scripts", "find_ray_python.sh", instance_id, mode, *ray_programs,
        libraries=["worker_command.sh"],
    )  # fmt: skip
    return f'eval "$({find})"'


def node_identity_env(
    instance_id: str,
    node_type: str,
    resources: Mapping[str, float],
    labels: Mapping[str, str],
) -> dict[str, str]:
    """The environment that ties a Ray node to its instance, and overrides the resources and labels
    that Ray would detect."""
    env = {
        "RAY_CLOUD_INSTANCE_ID": instance_id,
        "RAY_NODE_TYPE_NAME": node_type,
        # Ray renames its processes. Without this it would overwrite their environment with the
        # new name, and they could no longer be found by instance id.
        "SPT_NOENV": "1",
    }
    if resources:
        # Ray does not start a node with a fractional resource, although it schedules fractions,
        # and it needs an explicit 0.
        env["RAY_OVERRIDE_RESOURCES"] = json.dumps({k: int(v) for k, v in resources.items()})
    if labels:
        env["RAY_OVERRIDE_LABELS"] = json.dumps(dict(labels))
    return env


def start_timeout_env() -> dict[str, str]:
    """The environment that gives a node 300 s to register, its agents as long to start, and a
    worker 120 s until the head has registered: its GCS answers long before. Ray's defaults of 30
    and 40 s are not enough when many nodes start at once or the host is busy: the raylet then
    exits, and `ray start` waits for it in vain. Bootstrap has its own deadline."""
    return {
        "RAY_raylet_start_wait_time_s": "300",
        "RAY_agent_register_timeout_ms": "300000",
        "RAY_NUM_REDIS_GET_RETRIES": "60",  # one every 2 s
    }


def auth_env(mode: AuthMode, token_path: str) -> dict[str, str]:
    """The environment that authenticates nodes and drivers to the cluster."""
    if mode == "none":
        return {"RAY_AUTH_MODE": "disabled"}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token_path}


def auth_prelude(mode: AuthMode, token_path: str) -> str:
    """The same as shell text, for a token path relative to a home directory."""
    if mode == "none":
        return "export RAY_AUTH_MODE=disabled"
    return f'export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$HOME/{token_path}"'


def head_env() -> dict[str, str]:
    """The environment with which a head's GCS reports all demand quickly and leaves autoscaling to
    Shoal."""
    return {
        "RAY_enable_autoscaler_v2": "1",
        "RAY_max_resource_shapes_per_load_report": "-1",
        # How often the GCS asks every node for its pending tasks. Ray's default of 1 s would be
        # most of the time from a pending task to a launch.
        "RAY_gcs_pull_resource_loads_period_milliseconds": "400",
    }


def shared_host_head_start(
    python: str, address: str, ports: HeadPorts, directory: str
) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment for a head that shares its host with other nodes."""
    argv = [
        *_ray_start(python, address, directory),
        "--head",
        f"--port={ports.gcs}",
        "--no-monitor",
        f"--dashboard-host={address}",
        f"--dashboard-port={ports.dashboard}",
        f"--ray-client-server-port={ports.client}",
        f"--dashboard-agent-listen-port={ports.agent}",
    ]
    return argv, {"DASHBOARD_METRIC_PORT": str(ports.metrics), **head_env()}


def shared_host_worker_start(
    python: str, address: str, head_address: str, directory: str
) -> list[str]:
    """Arguments for a worker that shares its host with other nodes."""
    argv = [*_ray_start(python, address, directory), f"--address={head_address}"]
    if _workers_use_head_directory() and shutil.which("flock"):
        lock = Path(directory).parent / "ray-start.lock"
        return ["flock", "--close", str(lock), *argv]
    return argv


@cache
def _workers_use_head_directory() -> bool:
    """Whether workers of the local Ray ignore `--temp-dir` and use their head's directory. Those
    that start at the same time on one host then take the same names in it, and all but one die."""
    from importlib import metadata  # slow to import, and rarely needed

    from packaging.version import Version  # comes with Ray

    try:
        return Version(metadata.version("ray")).release < (2, 56)
    except (metadata.PackageNotFoundError, ValueError):
        return False


def wait_for_port_command(address: str) -> str:
    """A shell command that returns when HOST:PORT accepts connections."""
    host, port = split_host_port(address)
    connect = quote(["bash", "-c", 'exec 3<>"/dev/tcp/$0/$1"', host, port])
    return f"until {connect} 2>/dev/null; do sleep 0.1; done"


def _ray_start(python: str, address: str, directory: str) -> list[str]:
    return [
        *(python, "-m", "ray.scripts.scripts", "start"),
        f"--node-ip-address={address}",
        f"--temp-dir={directory}",
        # The operating system picks the ports of Ray's workers, so that nodes cannot collide.
        *("--min-worker-port=0", "--max-worker-port=0"),
        "--disable-usage-stats",
    ]


def timed_out_at_start(output: Sequence[str]) -> bool:
    """Whether this is the output of a `ray start` that may succeed the next time."""
    return any(_STARTUP_TIMEOUT in line for line in output)
