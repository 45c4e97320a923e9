"""The words that start Ray on a node: environment and arguments, as data. Runs nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shoal.remote.runner import quote
from shoal.spec.cluster_spec import AuthMode

# A head with its own ports needs this many in a row.
HEAD_PORTS = 5
DEFAULT_OBJECT_STORE_BYTES = 200_000_000


@dataclass(frozen=True)
class HeadPorts:
    """Where a head listens, when several heads share a machine."""

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


def identity(
    instance_id: str,
    node_type: str,
    resources: Mapping[str, float],
    labels: Mapping[str, str],
) -> dict[str, str]:
    """The environment by which Ray's view of a node can be joined with its provider's, and
    which overrides what Ray would detect of the machine."""
    env = {
        "RAY_CLOUD_INSTANCE_ID": instance_id,
        "RAY_NODE_TYPE_NAME": node_type,
        # Ray renames its processes. Told otherwise, it would overwrite their environment with
        # the new name, and they could not be found by the instance's id any more.
        "SPT_NOENV": "1",
    }
    if resources:
        # Ray refuses to start a node with part of a resource, although it hands out parts, and
        # it wants to see that there is none.
        env["RAY_OVERRIDE_RESOURCES"] = json.dumps({k: int(v) for k, v in resources.items()})
    if labels:
        env["RAY_OVERRIDE_LABELS"] = json.dumps(dict(labels))
    return env


def patience() -> dict[str, str]:
    """The environment that lets a node take its time to register. Left alone, Ray ends a node
    after 30 s, which is not enough where many start at once or the machine is busy; how long a
    start may take is for us to say."""
    return {"RAY_raylet_start_wait_time_s": "300"}


def authentication(mode: AuthMode, token_path: str) -> dict[str, str]:
    """The environment that lets a process into a cluster: nodes and drivers alike."""
    if mode == "none":
        return {"RAY_AUTH_MODE": "disabled"}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token_path}


def authentication_prelude(mode: AuthMode, token_path: str) -> str:
    """The same as shell text, for a token that lies below a home directory we do not know."""
    if mode == "none":
        return "export RAY_AUTH_MODE=disabled"
    return f'export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$HOME/{token_path}"'


def head_environment() -> dict[str, str]:
    """What a head needs so that its GCS reports all demand, and soon, and leaves the sizing to
    us."""
    return {
        "RAY_enable_autoscaler_v2": "1",
        "RAY_max_resource_shapes_per_load_report": "-1",
        # How often the GCS asks every node what waits there. Ray's own second would be most of the
        # time that a task waits for a launch.
        "RAY_gcs_pull_resource_loads_period_milliseconds": "400",
    }


def head_on_shared_machine(
    python: str, address: str, ports: HeadPorts, directory: str
) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment for a head that shares its machine with other nodes."""
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
    return argv, {"DASHBOARD_METRIC_PORT": str(ports.metrics), **head_environment()}


def worker_on_shared_machine(
    python: str, address: str, head_address: str, directory: str
) -> list[str]:
    """Arguments for a worker that shares its machine with other nodes."""
    argv = [*_ray_start(python, address, directory), f"--address={head_address}"]
    if _shares_directories() and shutil.which("flock"):
        lock = Path(directory).parent / "ray-start.lock"
        return ["flock", "--close", str(lock), *argv]
    return argv


@cache
def _shares_directories() -> bool:
    """Whether the Ray here is one whose workers use their head's directory, whatever they are told.
    On one machine, those that start at once then take the same names in it, and all but one die."""
    from importlib import metadata  # slow to import and rarely needed

    from packaging.version import Version  # comes with Ray

    try:
        return Version(metadata.version("ray")).release < (2, 56)
    except (metadata.PackageNotFoundError, ValueError):
        return False


def wait_for_port(address: str) -> str:
    """A shell command that ends when something listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    probe = quote(["bash", "-c", 'exec 3<>"/dev/tcp/$0/$1"', host, port])
    return f"until {probe} 2>/dev/null; do sleep 0.1; done"


def _ray_start(python: str, address: str, directory: str) -> list[str]:
    return [
        *(python, "-m", "ray.scripts.scripts", "start"),
        f"--node-ip-address={address}",
        f"--temp-dir={directory}",
        # The operating system picks ports for Ray's workers, so that nodes cannot collide.
        *("--min-worker-port=0", "--max-worker-port=0"),
        "--disable-usage-stats",
    ]


# By this variable of a process a head knows that a person uses the cluster with that address.
IN_USE = "SHOAL_IN_USE"


@dataclass(frozen=True)
class RayStart:
    """How Ray is started on one machine: shell commands, the environment they need, and where
    the cluster's GCS then listens.

    `prelude` is shell text that goes before every command that has to do with Ray. `python` is
    shell text that names the interpreter there that has Ray. `dashboard` is where a browser here
    finds it, when it needs no help. With `shares_credentials` the bootstrap hands the head's
    token and key to the workers; otherwise the provider has seen to that.
    """

    commands: tuple[str, ...]
    env: Mapping[str, str]
    gcs_address: str
    python: str
    dashboard_port: int
    dashboard: str = ""
    prelude: str = ""
    shares_credentials: bool = False

    def command(self, command: str) -> str:
        """A command as it must be run so that it finds what Ray needs."""
        return f"{self.prelude}\n{command}" if self.prelude else command

    def driver_env(self) -> dict[str, str]:
        """What a program on the head needs, beside the prelude, so that `ray.init()` finds this
        cluster."""
        inherited = {k: v for k, v in self.env.items() if k.startswith("RAY_AUTH_")}
        return {"RAY_ADDRESS": self.gcs_address, **inherited}

    def session_env(self) -> dict[str, str]:
        """The same for what a person runs: while it lasts, the cluster is in use."""
        return {**self.driver_env(), IN_USE: self.gcs_address}
