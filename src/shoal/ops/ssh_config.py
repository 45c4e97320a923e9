"""SSH client configuration for a cluster's nodes, so that `ssh CLUSTER` works.

Each cluster has its own file in ~/.ssh/shoal, and ~/.ssh/config includes them all. Apart from that
Include, which goes to the top, the user's file is never changed.
"""

from __future__ import annotations

from pathlib import Path

from shoal.cluster.handle import ClusterHandle
from shoal.core.atomic_write import write_atomically
from shoal.core.errors import ConfigError
from shoal.ops.context import Context
from shoal.providers.model import Instance, State
from shoal.remote.ssh_config_file import ssh_config
from shoal.remote.ssh_runner import SshRunner
from shoal.spec.cluster_spec import ClusterSpec

_INCLUDE = "# Added by shoal ssh-config --write.\nInclude shoal/*.conf\n"


async def render(ctx: Context, spec: ClusterSpec) -> str:
    """The Host blocks of the cluster: the head as CLUSTER, other nodes as CLUSTER-NODE."""
    cluster = ClusterHandle.of(ctx, spec)
    await cluster.head()
    targets = {}
    for instance in await cluster.instances():
        runner = cluster.runner(instance)
        if not isinstance(runner, SshRunner):
            raise ConfigError(
                f"the nodes of {spec.cluster_name} are not reached by SSH",
                why="they run on this machine",
                fix="open a shell: shoal attach CLUSTER",
            )
        if instance.state is not State.UNREACHABLE:
            targets[_alias(spec, instance)] = runner.target
    return ssh_config(targets)


async def install(ctx: Context, spec: ClusterSpec, home: Path) -> Path:
    """Write the Host blocks to a file in `home`/.ssh/shoal, include it in the SSH configuration,
    and return it."""
    blocks = await render(ctx, spec)
    file = _file(spec.cluster_name, home)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write(file, blocks)
    config = home / ".ssh" / "config"
    present = config.read_text() if config.exists() else ""
    if _INCLUDE not in present:
        # At the top: further down it would belong to the Host block above it.
        _write(config, f"{_INCLUDE}\n{present}" if present else _INCLUDE)
    return file


def remove(cluster: str, home: Path) -> None:
    """Delete a cluster's file. The Include line stays."""
    _file(cluster, home).unlink(missing_ok=True)


def _alias(spec: ClusterSpec, instance: Instance) -> str:
    name = spec.cluster_name
    return name if instance.role == "head" else f"{name}-{instance.name}"


def _file(cluster: str, home: Path) -> Path:
    return home / ".ssh" / "shoal" / f"{cluster}.conf"


def _write(file: Path, content: str) -> None:
    """Put a file in place whole, behind a link if it is one, and for its owner alone."""
    file = file.resolve()
    mode = file.stat().st_mode & 0o777 if file.exists() else 0o600
    write_atomically(file, content, mode=mode)
